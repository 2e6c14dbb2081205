//! Tests the lock that delays forks, in a separate program: the lock is process-wide, and a test that waits for it
//! would keep other tests from opening their ledgers.
#![allow(unsafe_code)] // fork, clone and the state.

use std::thread;
use vgpu_core::os::fork::{guard, start};

/// Waits for a child, which must end without an error.
fn ended_well(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid, "{pid}");
    assert_eq!(status, 0);
}

/// Forks in another thread. The child's exit status tells whether `is_well` was true.
fn forked_elsewhere(is_well: fn() -> bool) {
    let child = || {
        // SAFETY: the child does nothing but ask and end.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the child, without the exit handlers of the test.
            unsafe { libc::_exit(i32::from(!is_well())) };
        }
        ended_well(pid);
    };
    thread::scope(|scope| scope.spawn(child).join()).expect("forked");
}

/// The same without the handlers that fork() calls.
fn cloned_elsewhere(is_well: fn() -> bool) {
    let child = || {
        // SAFETY: as a fork, whose child does nothing but ask and end.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
        if pid == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_well())) };
        }
        ended_well(pid);
    };
    thread::scope(|scope| scope.spawn(child).join()).expect("cloned");
}

#[test]
fn a_fork_unlocks_no_guard_but_its_own_and_its_child_has_one() {
    // SAFETY: this program has this one state.
    unsafe { start(|| 0_u8) };
    let others_get_it = || thread::scope(|scope| scope.spawn(|| guard().is_held()).join()).expect("asked");
    let held = guard();
    assert!(held.is_held());
    forked_elsewhere(|| guard().is_held());
    cloned_elsewhere(|| guard().is_held());
    assert!(
        !others_get_it(),
        "a fork that waited in vain gave away what it did not have"
    );
    drop(held);
    forked_elsewhere(|| guard().is_held());
    cloned_elsewhere(|| guard().is_held());
    assert!(others_get_it(), "a fork kept what it had");
}
