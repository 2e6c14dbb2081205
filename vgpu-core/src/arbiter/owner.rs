//! The identity of this process in the cells of its share's page, and whether the process with an identity is alive.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_abi::arbitration::Cell;

use crate::compute::{MS, Ns};

/// If the process of a cell cannot be seen from here, the cell may be taken after this long without a renewal.
const STALE: Ns = 60_000 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(pub u64);

impl Owner {
    pub(super) fn of_this_process() -> Self {
        Self(u64::from(std::process::id()) | namespace() << 32)
    }

    fn is_in_namespace_of(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    fn pid(self) -> libc::pid_t {
        libc::pid_t::try_from(self.0 & 0xffff_ffff).unwrap_or(0)
    }

    /// Returns true if the process that owns `cell` is dead, or cannot be seen from `own` and has stopped renewing the cell.
    pub(super) fn is_dead(self, own: Self, cell: &Cell, now: Ns) -> bool {
        if self.is_in_namespace_of(own) && self.pid() > 0 {
            return is_gone(self.pid());
        }
        cell.valid_until.load(Relaxed).saturating_add(STALE) < now
    }
}

/// Returns 32 bits of the PID namespace's number, 0 if it cannot be read.
fn namespace() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = link.to_string_lossy();
    let number = digits.trim_start_matches("pid:[").trim_end_matches(']').parse::<u64>();
    number.unwrap_or(0) & 0xffff_ffff
}

/// Returns true if no process has this PID.
#[allow(unsafe_code)] // One call of libc.
fn is_gone(pid: libc::pid_t) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { libc::kill(pid, 0) };
    result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "processes")]
    fn this_process_lives_and_one_that_has_ended_does_not() {
        let (own, cell) = (Owner::of_this_process(), Cell::default());
        assert!(own.0 >> 32 != 0 && !own.is_dead(own, &cell, 1));
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let ended = Owner(u64::from(child.id()) | own.0 >> 32 << 32);
        child.wait().expect("it ends");
        assert!(ended.is_dead(own, &cell, 1));
    }

    #[test]
    fn a_process_of_another_namespace_is_dead_when_it_says_nothing_any_more() {
        let (own, other, cell) = (Owner(7 | 1 << 32), Owner(9 | 2 << 32), Cell::default());
        cell.valid_until.store(1000, Relaxed);
        assert!(!other.is_dead(own, &cell, 1000 + STALE));
        assert!(other.is_dead(own, &cell, 1001 + STALE));
    }
}
