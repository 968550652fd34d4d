//! Rules of the repository itself: dependencies between crates and files, tidiness, and that the
//! pages on security match dependencies and tests.

mod architecture;
mod circles;
mod policy;
mod tidy;
