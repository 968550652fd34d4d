//! Signed messages, as bytes.

use serde::Serialize;

use crate::error::Error;
use crate::ids::MeshId;

/// The largest value written here, in bytes: a credential.
pub(crate) const ROOM: usize = 704;

/// Whether a statement belongs to this mesh.
pub(crate) fn check_mesh(expected: &MeshId, found: &MeshId) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::ForeignMesh { expected: *expected, found: *found })
}

/// The message that a signature covers: the domain, which names the kind of statement, and the
/// body, a tuple of fields. Their order is the format.
pub(crate) fn signed_message(domain: &[u8], body: &impl Serialize) -> Vec<u8> {
    let mut message = domain.to_vec();
    message.extend(encoded(body));
    message
}

/// Encodes a value. Allocates space for a credential at once: keys and signatures are written byte
/// by byte, and a node that admits others writes thousands.
pub(crate) fn encoded(value: &impl Serialize) -> Vec<u8> {
    let room = Vec::with_capacity(ROOM);
    postcard::to_extend(value, room).expect("names, keys and numbers can always be encoded")
}
