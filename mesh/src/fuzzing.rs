//! Bodies of the fuzz targets that need private parts; only with the feature `fuzzing`.

pub use crate::null_crypto::fuzzing::null_handshake;
pub use meshport_proto::fuzzing::*;
