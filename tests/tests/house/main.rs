//! What the repository itself has to keep: arrows between crates, tidiness, licences and bans.

mod architecture;
mod policy;
mod tidy;
