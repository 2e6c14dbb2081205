//! Questions to the kernel, without a libc.

use crate::machine::{SYS_FACCESSAT, call};
use crate::name::Text;

/// The folder of a relative path: the current one.
pub(crate) const AT_FDCWD: usize = -100_isize as usize;
const ENOENT: isize = -2;
const ENOTDIR: isize = -20;

/// Returns true if there is a file at `path`, even if this process may not reach it.
pub(crate) fn exists(path: Text) -> bool {
    const ANY: usize = 0;
    let answer = call(SYS_FACCESSAT, [AT_FDCWD, path.pointer().expose_provenance(), ANY, 0]);
    !matches!(answer, ENOENT | ENOTDIR)
}
