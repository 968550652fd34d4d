//! Real daemons as separate processes: the main job, failures, load, bad input.
//!
//! A single program, since each further one links the whole workspace.

mod abuse;
mod access;
mod authority;
mod burst;
mod dashboard;
mod doctor;
mod drain;
mod duplicate;
mod events;
mod expose;
mod fallback;
mod flood;
mod forward;
mod herd;
mod hostile;
mod hostile_issuer;
mod issuers;
mod join_file;
mod leave;
mod listener;
mod load;
mod logs;
mod nat;
mod offers;
mod pace;
mod partition;
mod queries;
mod relay;
mod renew;
mod revoke;
mod rotate;
mod rotate_key;
mod sandbox;
mod secrets;
mod signals;
mod sites;
mod state;
mod support_bundle;
mod top;
mod upgrade;
mod view;
mod virtual_address;
mod wayback;
mod width;
