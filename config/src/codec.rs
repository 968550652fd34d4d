//! Bounded decoding: bytes and tagged text.
//!
//! Bytes are postcard. A decoder refuses input above its bound before parsing it, trailing bytes,
//! and any encoding other than the one this crate writes, so one value has one encoding. Text is a
//! tag with kind and version, a dot, and base64url without padding.

use data_encoding::BASE64URL_NOPAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::error::Error;

/// The largest bound of any decoder in this crate, in bytes.
const MAX_DECODED_BYTES: usize = 4096;

/// A kind of tagged text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tag {
    /// With its article, for messages.
    pub(crate) what: &'static str,
    /// The part before the version.
    stem: &'static str,
    /// The version, and the dot that ends the tag.
    version: &'static str,
}

/// Version 1 had no signature over its secrets and seeds.
pub(crate) const INVITE: Tag = Tag { what: "an invite", stem: "meshport-invite-", version: "2." };
/// The part that an issuer signs, before the node has: all of a credential in its version 1.
pub(crate) const ISSUED: Tag = Tag::first("a credential", "meshport-credential-");
pub(crate) const CREDENTIAL: Tag = Tag { version: "2.", ..ISSUED };
pub(crate) const REVOCATION: Tag = Tag::first("a revocation", "meshport-revocation-");
pub(crate) const RECORD_KEY: Tag = Tag::first("a record key", "meshport-record-key-");
pub(crate) const AUTHORITY_KEY: Tag = Tag::first("an authority key", "meshport-authority-key-");
pub(crate) const ENDORSEMENT: Tag =
    Tag::first("the endorsement of an authority key", "meshport-endorsement-");
pub(crate) const DELEGATION_KEY: Tag = Tag::first("a delegation key", "meshport-delegation-key-");
pub(crate) const MESH_SECRET: Tag = Tag::first("a mesh secret", "meshport-mesh-secret-");
pub(crate) const ROTATION: Tag =
    Tag::first("the statement about a mesh secret", "meshport-rotation-");
pub(crate) const NEXT_SECRET: Tag = Tag::first("a new mesh secret", "meshport-next-secret-");
pub(crate) const MANDATE: Tag = Tag::first("a mandate", "meshport-mandate-");

const TAGS: [Tag; 11] = [
    INVITE,
    CREDENTIAL,
    REVOCATION,
    RECORD_KEY,
    AUTHORITY_KEY,
    ENDORSEMENT,
    DELEGATION_KEY,
    MESH_SECRET,
    ROTATION,
    NEXT_SECRET,
    MANDATE,
];

impl Tag {
    /// The first version of a kind.
    const fn first(what: &'static str, stem: &'static str) -> Self {
        Self { what, stem, version: "1." }
    }

    /// The text form of `bytes`.
    pub(crate) fn encode(self, bytes: &[u8]) -> Zeroizing<String> {
        let length = self.stem.len() + self.version.len() + BASE64URL_NOPAD.encode_len(bytes.len());
        let mut text = Zeroizing::new(String::with_capacity(length));
        text.push_str(self.stem);
        text.push_str(self.version);
        BASE64URL_NOPAD.encode_append(bytes, &mut text);
        text
    }

    /// The bytes in `text`, at most `max` of them. `malformed` is the error for a text with the
    /// right tag whose rest is not base64url or too long.
    pub(crate) fn decode(
        self,
        text: &str,
        max: usize,
        malformed: Error,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let text = text.trim();
        let Some(versioned) = text.strip_prefix(self.stem) else {
            return Err(self.wrong_kind(text));
        };
        let Some(encoded) = versioned.strip_prefix(self.version) else {
            let digits = versioned.split_once('.').map_or("", |(digits, _)| digits);
            let is_version = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            return Err(match is_version {
                true => Error::OtherVersion { what: self.what },
                false => malformed,
            });
        };
        if encoded.len() > BASE64URL_NOPAD.encode_len(max) {
            return Err(malformed);
        }
        BASE64URL_NOPAD.decode(encoded.as_bytes()).map(Zeroizing::new).map_err(|_| malformed)
    }

    /// The error for unreadable text of this kind; does not repeat it.
    pub(crate) fn unreadable(self) -> Error {
        Error::SecretText { what: self.what, expected: "the whole line, as meshport wrote it" }
    }

    fn wrong_kind(self, text: &str) -> Error {
        match TAGS.into_iter().find(|tag| text.starts_with(tag.stem)) {
            Some(other) => Error::WrongKind { expected: self.what, found: other.what },
            None => self.unreadable(),
        }
    }
}

/// The bytes of `value`, at most `max` of them. Leaves no copy: they are written once, to a buffer
/// that is erased.
pub(crate) fn encode_secret<T: Serialize>(
    value: &T,
    what: &'static str,
    max: usize,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let malformed = |_| Error::Malformed { what };
    let size = postcard::experimental::serialized_size(value).map_err(malformed)?;
    if size > max {
        return Err(Error::TooLarge { what, bytes: size, max });
    }
    let mut bytes = Zeroizing::new(vec![0; size]);
    postcard::to_slice(value, &mut bytes).map_err(malformed)?;
    Ok(bytes)
}

/// The value in `bytes`, which must contain nothing else and be at most `max` long.
pub(crate) fn decode<T: DeserializeOwned + Serialize>(
    bytes: &[u8],
    what: &'static str,
    max: usize,
) -> Result<T, Error> {
    if bytes.len() > max {
        return Err(Error::TooLarge { what, bytes: bytes.len(), max });
    }
    let (value, rest) =
        postcard::take_from_bytes::<T>(bytes).map_err(|_| Error::Malformed { what })?;
    let mut again = Zeroizing::new([0_u8; MAX_DECODED_BYTES]);
    let is_canonical = postcard::to_slice(&value, &mut *again).is_ok_and(|same| *same == *bytes);
    if !rest.is_empty() || !is_canonical {
        return Err(Error::Malformed { what });
    }
    Ok(value)
}
