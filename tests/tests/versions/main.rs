//! The previous release and this one in one mesh, as real daemons. Suite `versions` builds the
//! previous one (tests/previous-release) and names it in `MESHPORT_PREVIOUS_BIN`.

mod pairs;
mod roles;
mod steps;
