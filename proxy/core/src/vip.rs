//! Virtual addresses: one address of a LAN that one node of a group answers for.
//!
//! [`contest`] decides who holds the address. It has two inputs: claims of other nodes over the
//! mesh ([`claim`]) and frames about the address on the LAN ([`frame`]), which [`arp`] and [`nd`]
//! read and write. [`message`] encodes a claim, and [`group`] knows its recipients. The holder
//! repeats itself on both, and one that is silent on both has lost the address, so there is nothing
//! to clean up.

pub mod arp;
pub mod boot_time;
pub mod claim;
pub mod contest;
pub mod frame;
pub mod group;
pub mod lan;
pub mod message;
pub mod nd;
