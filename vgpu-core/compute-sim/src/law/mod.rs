//! The law decides which launch starts and which waits. A simulation has no law (the hardware alone), or the limiter of
//! `vgpu_core::compute`.

pub(crate) mod events;
pub(crate) mod io;
pub(crate) mod limited;

/// The law of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LawKind {
    /// No law: only the GPU's time slices.
    Hardware,
    Limiter,
}
