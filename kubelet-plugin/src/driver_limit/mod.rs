//! The driver's own limit of a container's cgroup, which stands behind the library's
//! (docs/adr/0013-the-drivers-limit-behind-the-librarys.md).

pub mod check;
