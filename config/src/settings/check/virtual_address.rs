//! Rules for `[[virtual-address]]`.

use std::collections::BTreeMap;

use super::Rules;
use crate::settings::Settings;
use crate::settings::read::join;

impl Rules<'_, '_> {
    /// Every rule for virtual addresses.
    pub(super) fn virtual_addresses(&mut self, settings: &Settings) {
        let mut seen = BTreeMap::new();
        for (name, it) in &settings.virtual_addresses {
            let path = join("virtual-address", name.as_ref());
            if !settings.services.contains_key(&it.service) {
                let found = format!("\"{}\"", it.service);
                let expected = format!("a service of this node: add [service.{}]", it.service);
                self.conflict(&join(&path, "service"), None, found, expected);
            }
            if let Some(earlier) = seen.insert(it.address, name) {
                let found = format!("\"{}\", as in [[virtual-address]] {earlier}", it.address);
                let expected = "an address that no other [[virtual-address]] has";
                self.conflict(&join(&path, "address"), None, found, expected);
            }
        }
    }
}
