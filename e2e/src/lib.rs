//! A real Kubernetes on this machine, with one or more nodes, and this project installed on it the way a user would.
//!
//! ```text
//! toolchain: tools/<family>/go.mod ──go build──► cache/tools/<family>-<key>/      (as the caller, once)
//! image:     dist/ + the distribution's packages ──► cache/images/*.tar          (OCI layouts, no daemon)
//!                                    │
//! demo, tests ─socket─► keeper ─socket─► init of the control plane (PID 1 of new mount, network, PID namespaces)
//!      │                  │   │           └─ etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!      │                  │   └─socket─► init of each node (the same, inside the control plane's PID namespace)
//!      │                  │               └─ containerd, kubelet
//!      │                  └─ holds the lock, the cgroup folders and the listening socket; undoes everything
//!      └─ kubectl over https://127.0.0.1:<port>, helm, nsenter
//! ```
//!
//! Failure modes:
//! - The program that started the cluster dies for any reason: its end of the socket closes, and the keeper removes
//!   the cluster.
//! - The keeper is killed: the inits' sockets close and the inits end. They are PID 1 of their namespaces, so every
//!   process, mount and network device of the cluster ends with them. The next `up` or `down` sees that nobody holds
//!   the lock and removes the rest (cgroup folders, the state folder, controllers of cgroup v2).
//! - An init dies by itself: the cluster ends, with the end of that init's log as the reason.
//! - Two programs build the same tool: the second waits for the first one's lock and finds the result.
//! - A build is interrupted: it happened in a temporary folder that the next build empties.
//!
//! Nothing on the host is written outside the state folder, the cache and `target/`: /etc, /opt, /var/lib and /var/log
//! are overlays in memory, /run is a separate file system, and the sysctls that the kubelet sets are private files.
//! Two things have no namespace and are restored after the last cluster: the controllers of the root of cgroup v2, and
//! containerd's AppArmor profile (`cluster/host.rs`).
//!
//! Errors are `anyhow`: this is a tool for people, and an error ends the run with its chain of causes.
#![forbid(unsafe_code)]

mod api;
pub mod cli;
pub mod cluster;
pub mod demo;
pub mod gpu_time;
pub mod guest;
pub mod hand_made;
pub mod image;
pub mod install;
pub mod interrupt;
pub mod kube;
pub mod layout;
pub mod lock;
pub mod node;
pub mod outcome;
pub mod patience;
pub mod preflight;
pub mod prepared;
pub mod progress;
pub mod shell;
pub mod snapshot;
pub mod toolchain;
pub mod wait;
pub mod workload;
