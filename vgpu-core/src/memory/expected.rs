//! Estimates the memory of a context, of a limit of a context, or of code. It is charged before the call, and corrected
//! by the measurement after it ([`measure`](super::measure)).
//!
//! | what | charged ahead |
//! |---|---|
//! | a context | its size on this GPU and driver, as the plugin or `vgpu run` measured it, or that of the share's largest context. If neither is known, [`UNKNOWN_CONTEXT`], or all of a smaller share. In addition the [`libraries`](super::libraries) that wait for a context |
//! | a limit of a context | the growth from the present value to the argument ([`growth`]) |
//! | code | what the same code took before. Else the size in its file, if that is complete ([`KnownCode`]). Else its declared static variables, but at least [`UNKNOWN_CODE`], as far as that is free |
//!
//! How it fails: code whose file does not show its static variables (compressed, or to be linked) may take more,
//! uncharged until it is measured. If it does not fit, the load is undone, and later loads of it are refused without
//! calling the driver.

use super::known_code::{KnownCode, UNKNOWN_CODE};
use super::overhead::Thing;
use core::ffi::c_int;

const MIB: u64 = 1 << 20;

/// Charged for a context of unknown size: more than CUDA 12 takes on an H100.
pub const UNKNOWN_CONTEXT: u64 = 600 * MIB;

/// If a context took more than this many times the usual size, the measurement included other memory.
const PLAUSIBLE: u64 = 2;

/// What a call is about to create.
#[derive(Clone, Copy, Debug)]
pub enum Ahead {
    Context,
    Limit(Limit),
    Code(Code),
}

/// A limit of a context that is about to be set.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The handle of the context.
    pub context: usize,
    /// The driver's number of the limit.
    pub number: c_int,
    /// Its present value; 0 if the driver does not say.
    pub now: u64,
    pub value: u64,
    /// Number of threads that the GPU can run at once: each has a stack.
    pub threads: u64,
}

/// Code that is about to be loaded. The default value means that nothing is known about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Code {
    /// Equal for equal code. 0: the code could not be read.
    pub fingerprint: u64,
    /// The size of its static variables and instructions, as far as its file shows it.
    pub bytes: u64,
    /// True if `bytes` is the whole size: a cubin that is neither compressed nor to be linked.
    pub is_known: bool,
}

impl Limit {
    #[must_use]
    pub fn thing(&self) -> Thing {
        Thing::Limit(self.context, self.number)
    }
}

/// Returns the bytes to charge for a context. `known`: its size on this GPU and driver; `took`: the size of the share's
/// largest context; each if it was measured.
#[must_use]
pub fn context(known: Option<u64>, took: Option<u64>, limit: u64) -> u64 {
    known.max(plausible(known, took)).unwrap_or(UNKNOWN_CONTEXT.min(limit))
}

/// Returns `took` if a context can be that large. A larger value may include other processes' memory, or be a lie:
/// every process of the share may write to the ledger, and a huge size would prevent all contexts of the share forever.
#[must_use]
pub fn plausible(known: Option<u64>, took: Option<u64>) -> Option<u64> {
    let most = known.unwrap_or(0).max(UNKNOWN_CONTEXT).saturating_mul(PLAUSIBLE);
    took.filter(|took| *took <= most)
}

/// Returns the bytes that the driver reserves when a limit is raised from `from` to its new value. Limits that are not
/// listed reserve nothing.
#[must_use]
pub fn growth(limit: &Limit, from: u64) -> u64 {
    const STACK: c_int = 0;
    const PRINTF_FIFO: c_int = 1;
    const MALLOC_HEAP: c_int = 2;
    const SYNC_DEPTH: c_int = 3;
    const PENDING_LAUNCHES: c_int = 4;
    /// Bytes for each level at which a kernel may wait for its children.
    const LEVEL: u64 = 150 * MIB;
    /// Bytes for each pending device-side launch.
    const LAUNCH: u64 = 4 << 10;
    let each = match limit.number {
        STACK => limit.threads,
        PRINTF_FIFO | MALLOC_HEAP => 1,
        SYNC_DEPTH => LEVEL,
        PENDING_LAUNCHES => LAUNCH,
        _ => 0,
    };
    limit.value.saturating_sub(from).saturating_mul(each)
}

/// Returns the bytes to charge for code. `took`: its size when it was loaded before. `known`: code of this process that
/// was not measured, but whose files state its size.
#[must_use]
pub fn code(code: &Code, took: Option<u64>, known: KnownCode) -> u64 {
    match took {
        Some(took) => took,
        None if code.is_known => known.with(code.bytes).charge().saturating_sub(known.charge()),
        None => code.bytes.max(UNKNOWN_CODE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_context_of_unknown_size_is_reserved_for_and_never_free() {
        assert_eq!(context(Some(500 * MIB), None, GIB), 500 * MIB);
        assert_eq!(context(Some(0), None, GIB), 0, "measured");
        assert_eq!(
            context(Some(100 * MIB), Some(300 * MIB), GIB),
            300 * MIB,
            "one took more"
        );
        assert_eq!(context(None, None, 20 * GIB), UNKNOWN_CONTEXT);
        assert_eq!(context(None, None, 64 * MIB), 64 * MIB, "all of it: one at a time");
        assert_eq!(context(None, Some(0), 20 * GIB), 0);
        for lie in [2 * UNKNOWN_CONTEXT + 1, u64::MAX] {
            assert_eq!(context(Some(500 * MIB), Some(lie), GIB), 500 * MIB);
            assert_eq!(context(None, Some(lie), 20 * GIB), UNKNOWN_CONTEXT);
        }
    }

    #[test]
    fn a_limit_is_charged_what_its_argument_asks_for() {
        let limit = |number, value| Limit {
            context: 1,
            number,
            now: 0,
            value,
            threads: 132 * 2048,
        };
        assert_eq!(growth(&limit(2, 59 * GIB), 8 * MIB), 59 * GIB - 8 * MIB);
        assert_eq!(growth(&limit(2, MIB), 8 * MIB), 0);
        assert_eq!(growth(&limit(0, 2048), 1024), 1024 * 132 * 2048);
        assert_eq!(growth(&limit(0, u64::MAX), 0), u64::MAX, "no overflow");
        assert_eq!(growth(&limit(5, 128), 0), 0);
    }

    #[test]
    fn code_is_charged_what_it_took_before_or_what_it_declares() {
        let of = |bytes, is_known| Code {
            fingerprint: 1,
            bytes,
            is_known,
        };
        let none = KnownCode::default();
        assert_eq!(code(&of(0, false), None, none), UNKNOWN_CODE);
        assert_eq!(code(&of(59 * GIB, false), None, none), 59 * GIB);
        assert_eq!(code(&of(0, false), Some(2 * MIB), none), 2 * MIB);
        // The first file is charged with the driver's tables, further ones when their bytes fill granules.
        assert_eq!(code(&of(1000, true), None, none), UNKNOWN_CODE + 2 * MIB);
        assert_eq!(code(&of(1000, true), None, none.with(1000)), 0);
        assert_eq!(code(&of(2 * MIB, true), None, none.with(1000)), 2 * MIB);
        assert_eq!(code(&of(u64::MAX, true), None, none), u64::MAX, "no overflow");
        assert_eq!(code(&of(0, true), Some(2 * MIB), none), 2 * MIB);
    }
}
