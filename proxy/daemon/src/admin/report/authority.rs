//! The authority's key where the daemon's user can read it.

use std::path::Path;

/// The warning while the key is there, whatever its file mode.
pub(crate) fn warning(key: &Path) -> Option<String> {
    // A link counts, also one that leads nowhere now.
    key.symlink_metadata().ok()?;
    Some(format!(
        "the authority's key is in this node's state folder, {}. The daemon does not need it but \
         can read it, so whoever takes over this daemon takes over the mesh. Move it offline and \
         name it there: `meshport invite --site SITE --authority FILE`",
        key.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_key_is_told_of_as_long_as_it_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("authority.key");
        assert_eq!(warning(&key), None);
        fs::write(&key, "anything").expect("written");
        let said = warning(&key).expect("it is there");
        assert!(said.contains("authority.key") && said.contains("--authority FILE"), "{said}");
        fs::remove_file(&key).expect("removed");
        assert_eq!(warning(&key), None);
    }
}
