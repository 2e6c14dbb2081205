//! SIGKILL at every instruction of the library, on x86-64: see `kills`.

mod support;

#[cfg(target_arch = "x86_64")]
#[path = "single_step/kills.rs"]
mod kills;

/// After each single step the processor has lost the exclusive access that the ledger's exchange began, so the exchange
/// would be repeated without end.
#[cfg(not(target_arch = "x86_64"))]
#[test]
fn kills() {
    vgpu_skip::skip(
        "single_step::kills",
        "exclusive loads and stores do not succeed in single steps",
    );
}
