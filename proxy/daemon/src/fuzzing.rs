//! Bodies of the fuzz targets that need private parts; only with the feature `fuzzing`.

pub use crate::admin::fuzzing::{Asked, admin_connection};
pub use crate::expose::fuzzing::client_hello;
