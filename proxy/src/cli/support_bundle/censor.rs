//! Keeps secrets out of a bundle, even those in a log or an answer.
//!
//! No collected part should contain a secret; this is a second safeguard. A line that contains a
//! key of the state folder in a usual form, or that looks like an invite, a private key or a token,
//! is dropped entirely. A user who cannot read the state folder does not know its keys; the tags of
//! meshport's own secrets are always searched for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER, HEXUPPER};
use meshport_config::Mandate;
use zeroize::Zeroizing;

/// Length in bytes of each of meshport's keys and secrets.
const SECRET_BYTES: usize = 32;
/// Length in bytes of an encoded part that counts as a leak: half of a key in its shortest form.
const TELLING: usize = SECRET_BYTES / 2;
/// Maximum bytes read of a file with secrets; more than any of them has.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Maximum number of files examined in a state folder, which has a dozen.
const MAX_FILES: usize = 100;
/// Tags of secrets, searched anywhere in a line.
const SIGNS: [&[u8]; 10] = [
    b"meshport-invite-",
    b"meshport-mandate-",
    b"meshport-record-key-",
    b"meshport-authority-key-",
    b"meshport-delegation-key-",
    b"meshport-mesh-secret-",
    b"meshport-next-secret-",
    b"PRIVATE KEY-----",
    b"Bearer ",
    b"client-key-data",
];
const REMOVED: &[u8] = b"[this line contained a secret and was left out]";

/// The known secrets' beginnings in their usual encodings.
#[derive(Default)]
pub(super) struct Censor {
    /// Sorted, for fast lookup.
    forms: Vec<Zeroizing<[u8; TELLING]>>,
}

impl Censor {
    /// A censor that knows the secrets of a state folder, as far as this user can read them.
    pub(super) fn of_state(folder: &Path) -> Self {
        let mut censor = Self::default();
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries.take(MAX_FILES) {
            let name = entry.file_name();
            if name.to_str().is_some_and(meshport_state::is_public) {
                continue;
            }
            if let Ok(Some(text)) = read(&entry.path()) {
                censor.learn(&text);
            }
        }
        censor.forms.sort_unstable_by(|a, b| a.as_slice().cmp(b.as_slice()));
        censor
    }

    /// Adds the secrets in a file of the state folder: lines of base64, or of a tag, a dot, and
    /// base64url, with the secret after a checksum; the keys of a mandate.
    fn learn(&mut self, text: &[u8]) {
        let words = text.split(u8::is_ascii_whitespace).filter(|word| word.len() >= SECRET_BYTES);
        for word in words {
            if let Some(mandate) = str::from_utf8(word).ok().and_then(|it| it.parse().ok()) {
                self.learn_mandate(&mandate);
                continue;
            }
            let tail = word.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
            for decoded in [BASE64.decode(word), BASE64URL_NOPAD.decode(tail)] {
                let Ok(bytes) = decoded.map(Zeroizing::new) else { continue };
                if let Some(secret) = bytes.last_chunk::<SECRET_BYTES>() {
                    self.learn_secret(secret);
                }
            }
        }
    }

    /// Most of a mandate is public, such as the id of its issuer.
    fn learn_mandate(&mut self, mandate: &Mandate) {
        mandate.keys().for_each(|key| self.learn(key.to_text().as_bytes()));
    }

    fn learn_secret(&mut self, secret: &[u8; SECRET_BYTES]) {
        let mut forms = vec![
            Zeroizing::new(secret.to_vec()),
            Zeroizing::new(HEXLOWER.encode(secret).into_bytes()),
            Zeroizing::new(HEXUPPER.encode(secret).into_bytes()),
        ];
        // Base64 of a longer text depends on where in it the secret begins.
        for skipped in 0..3 {
            let part = &secret[skipped..];
            forms.push(Zeroizing::new(BASE64.encode(part).into_bytes()));
            forms.push(Zeroizing::new(BASE64URL_NOPAD.encode(part).into_bytes()));
        }
        for form in forms {
            self.forms.extend(form.first_chunk::<TELLING>().copied().map(Zeroizing::new));
        }
    }

    /// The text without the lines that contain a secret, and the number of those lines.
    pub(super) fn clean(&self, text: Vec<u8>) -> (Vec<u8>, usize) {
        if !self.tells(&text) {
            return (text, 0);
        }
        let (mut kept, mut removed) = (Vec::with_capacity(text.len()), 0);
        let mut is_key = false;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let (begins, ends) = (contains(line, b"-----BEGIN"), contains(line, b"-----END"));
            is_key |= begins && contains(line, b"PRIVATE KEY");
            if is_key || self.tells(line) {
                kept.extend_from_slice(REMOVED);
                kept.push(b'\n');
                removed += 1;
            } else {
                kept.extend_from_slice(line);
            }
            is_key &= !ends;
        }
        // A secret that spans two lines.
        if self.tells(&kept) {
            return ([REMOVED, b"\n"].concat(), removed + 1);
        }
        (kept, removed)
    }

    fn tells(&self, text: &[u8]) -> bool {
        let known =
            |window: &[u8]| self.forms.binary_search_by(|form| form.as_slice().cmp(window)).is_ok();
        SIGNS.iter().any(|sign| contains(text, sign))
            || (!self.forms.is_empty() && text.windows(TELLING).any(known))
    }
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|it| it == wanted)
}

/// A regular file that is not a link; `None` for anything else.
fn read(path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let file = open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Opens a file for reading; follows no link and does not block on a pipe.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, NodeKey, Terms, UnixSeconds};
    use rand_core::OsRng;

    use super::*;

    const SECRET: [u8; SECRET_BYTES] = *b"0123456789abcdefghijklmnopqrstuv";

    fn censor() -> Censor {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("node.key"), BASE64.encode(&SECRET)).expect("written");
        Censor::of_state(folder.path())
    }

    #[test]
    fn a_line_with_a_secret_of_the_folder_in_any_form_is_left_out() {
        let censor = censor();
        let behind = [&b"sum"[..], &SECRET].concat();
        let forms = [
            HEXLOWER.encode(&SECRET),
            HEXUPPER.encode(&SECRET),
            BASE64.encode(&SECRET),
            BASE64URL_NOPAD.encode(&behind),
            BASE64URL_NOPAD.encode(&behind[1..]),
            BASE64.encode(&behind[2..]),
            String::from_utf8(SECRET.to_vec()).expect("it is text"),
        ];
        for form in forms {
            let text = format!("before\nkey={form} it is\nafter\n");
            let (kept, removed) = censor.clean(text.into_bytes());
            let kept = String::from_utf8(kept).expect("it is text");
            assert_eq!(removed, 1, "{form}");
            assert!(kept.starts_with("before\n[") && kept.ends_with("]\nafter\n"), "{kept}");
        }
        let (kept, removed) = censor.clean(b"nothing here\n".to_vec());
        assert_eq!((&*kept, removed), (&b"nothing here\n"[..], 0));
    }

    #[test]
    fn what_looks_like_a_secret_is_left_out_without_knowing_any() {
        let censor = Censor::default();
        let key =
            "a\n-----BEGIN EC PRIVATE KEY-----\nAAAA\nBBBB\n-----END EC PRIVATE KEY-----\nb\n";
        let (kept, removed) = censor.clean(key.as_bytes().to_vec());
        let kept = String::from_utf8(kept).expect("it is text");
        assert!(removed == 4 && kept.starts_with("a\n[") && kept.ends_with("]\nb\n"), "{kept}");
        for line in ["meshport join meshport-invite-2.AAAA", "Authorization: Bearer abc"] {
            assert_eq!(censor.clean(line.as_bytes().to_vec()).1, 1, "{line}");
        }
    }

    #[test]
    fn every_key_of_a_mandate_is_left_out_and_its_issuer_is_not() {
        let terms = Terms {
            issuer: NodeKey::from_bytes([3; SECRET_BYTES]).public(),
            roles: "node".parse().expect("a role"),
            site: None,
            lifetime_s: 86_400,
            from: UnixSeconds(0),
            until: UnixSeconds(86_400),
        };
        let authority = AuthorityKey::from_bytes([9; SECRET_BYTES]);
        let mandate = Mandate::create(&authority, &terms, &mut OsRng).expect("good");
        let folder = tempfile::tempdir().expect("a folder");
        let line = mandate.to_text().expect("short");
        fs::write(folder.path().join("mandate"), line.as_bytes()).expect("written");
        let censor = Censor::of_state(folder.path());
        let removed = |text: &str| censor.clean(text.as_bytes().to_vec()).1;
        assert!(mandate.len() > 1);
        for key in mandate.keys() {
            let text = key.to_text();
            let (_, bytes) = text.split_once('.').expect("a tag");
            let bytes = BASE64URL_NOPAD.decode(bytes.as_bytes()).expect("base64url");
            let secret = &bytes[bytes.len() - SECRET_BYTES..];
            assert_eq!(removed(&HEXLOWER.encode(secret)), 1);
            assert_eq!(removed(&BASE64.encode(secret)), 1);
        }
        assert_eq!(removed(&format!("issuer {}", terms.issuer)), 0);
        assert_eq!(Censor::default().clean(line.as_bytes().to_vec()).1, 1);
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("there"), "x").expect("written");
        std::os::unix::fs::symlink("there", folder.path().join("link")).expect("linked");
        assert!(open(&folder.path().join("link")).is_err());
        assert!(open(&folder.path().join("there")).is_ok());
    }
}
