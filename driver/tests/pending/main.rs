//! The texts that a pod's owner reads, from objects as the API server sends them.

mod controller;
mod many;
mod mistakes;
mod shortage;
mod world;
