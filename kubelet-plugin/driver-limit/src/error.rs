//! Why a command failed.

use std::io;

use crate::{apply, arguments, claim, hierarchy, namespaces, probe, records, remote, state};

/// Why the driver's limit was not set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Arguments(#[from] arguments::Error),
    #[error(transparent)]
    State(#[from] state::Error),
    #[error("container {id}: {source}")]
    Container { id: String, source: Reason },
    #[error(transparent)]
    Node(Reason),
    #[error("standard input or output: {0}")]
    Serve(io::Error),
}

/// Why a command failed, without the container's name.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    #[error(transparent)]
    Hierarchy(#[from] hierarchy::Error),
    #[error(transparent)]
    Claim(#[from] claim::Error),
    #[error(transparent)]
    Records(#[from] records::Error),
    /// It began without a limit, by another claim.
    #[error("it has no limit for its other claims either: {0}; start the container again")]
    GivenUp(String),
    #[error(transparent)]
    Driver(#[from] remote::Error),
    #[error(transparent)]
    Apply(#[from] apply::Error),
    #[error(transparent)]
    Namespaces(#[from] namespaces::Error),
    #[error(transparent)]
    Probe(#[from] probe::Error),
}
