//! Rules of the repository itself: dependencies between crates, tidiness, and that the pages on
//! security match dependencies and tests.

mod architecture;
mod policy;
mod tidy;
