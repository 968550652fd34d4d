//! Bodies of the fuzz targets that need private parts; only with the feature `fuzzing`.

pub use crate::expose::fuzzing::client_hello;
pub use crate::server::fuzzing::{Asked, admin_connection};
