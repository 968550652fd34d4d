//! Virtual addresses: one address of a LAN that one node of a group answers for.
//!
//! [`contest`] decides who holds the address. It hears two things: what other nodes say of
//! themselves over the mesh ([`claim`]) and what is said of the address on the LAN ([`frame`]),
//! which [`arp`] and [`nd`] read and write. [`message`] is how a claim
//! travels, and [`group`] knows to whom. The holder repeats itself on both, and a holder that
//! is silent on both has lost the address, without anything to take back.

pub mod arp;
pub mod boot_time;
pub mod claim;
pub mod contest;
pub mod frame;
pub mod group;
pub mod lan;
pub mod message;
pub mod nd;
