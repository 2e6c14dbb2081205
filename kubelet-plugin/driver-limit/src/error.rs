//! Why a command failed.

use std::io;

use vgpu_node::driver_limit::{NO_ANSWER, REFUSED};

use crate::{apply, arguments, claim, hierarchy, namespaces, records, remote, state};

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
}

impl Error {
    /// The program's exit status.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Container { source: reason, .. } | Self::Node(reason) if reason.is_no_answer() => NO_ANSWER,
            _ => REFUSED,
        }
    }
}

impl Reason {
    fn is_no_answer(&self) -> bool {
        match self {
            Self::Driver(error) => error.is_no_answer(),
            Self::Apply(error) => error.is_no_answer(),
            Self::Namespaces(error) => error.is_no_answer(),
            _ => false,
        }
    }
}
