//! What the repository itself has to keep: arrows between crates, tidiness, and what
//! the pages on security say of dependencies and tests.

mod architecture;
mod policy;
mod tidy;
