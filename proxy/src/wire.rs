//! The header of a proxied stream.
