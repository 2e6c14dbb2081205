//! The flags of `vgpu doctor` and `vgpu bundle`, for whoever operates a cluster.

use clap::{Args, value_parser};
use std::path::PathBuf;

use super::{AnswerFormat, ClusterFlags};

pub(super) const DOCTOR_LONG: &str = "\
Looks at the chart's objects, the nodes, DeviceClasses, ResourceSlices, ResourceClaims and pods of the current context's
cluster, asks which rights the chart's ServiceAccounts have, and plugins that are not ready why. It changes nothing.
What may not be read is not checked, and named.

With --probe it also creates a pod with a claim for 64Mi, says at which step that stops, and deletes both. Rights in the
namespace are enough for that.";

pub(super) const DOCTOR_AFTER: &str = "\
Exit status:
  0 if nothing was found, 1 if something was, 2 if the cluster cannot be read, or too little of it. With --probe the
  pod that ran is enough to know, whatever cannot be read.";

pub(super) const BUNDLE_LONG: &str = "\
Collects what somebody who is to help needs to see: our objects and what concerns them, logs of controller and plugins,
what doctor finds, and a page with a bar for each GPU, as one tar archive. It changes nothing in the cluster.

It has no Secrets, and of pods neither environment, arguments nor annotations of others. Names of tenants' namespaces, pods,
claims and templates are replaced by others, the same everywhere in the archive, unless --names is given.";

pub(super) const BUNDLE_AFTER: &str = "\
Exit status:
  0 if the archive was written, even if some objects may not be read: its read.txt names them; 2 if it was not.";

/// The flags of `vgpu doctor` as typed.
#[derive(Args, Debug)]
pub struct DoctorFlags {
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Output format
    #[arg(short, long, value_name = "text|json|yaml", default_value = "text")]
    pub output: AnswerFormat,
    /// Create a pod with a claim, and say how far it comes
    #[arg(long)]
    pub probe: bool,
    #[command(flatten)]
    pub pod: ProbeFlags,
}

/// The pod of `vgpu doctor --probe`.
#[derive(Args, Debug)]
pub struct ProbeFlags {
    /// Namespace of the pod [default: the context's]
    #[arg(short, long, value_name = "NAME", requires = "probe")]
    pub namespace: Option<String>,
    /// Image of the pod, which has /usr/bin/vgpu [default: that of vgpu-controller]
    #[arg(long, value_name = "IMAGE", requires = "probe")]
    pub image: Option<String>,
    /// DeviceClass of the claim
    #[arg(long, value_name = "NAME", default_value = "vgpu", requires = "probe")]
    pub class: String,
    /// Node to run on [default: any]
    #[arg(long, value_name = "NAME", requires = "probe")]
    pub node: Option<String>,
    /// Seconds to wait for the pod, 1 to 600
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = value_parser!(u16).range(1..=600), requires = "probe")]
    pub timeout: u16,
}

/// The flags of `vgpu bundle` as typed.
#[derive(Args, Debug)]
pub struct BundleFlags {
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Archive to write, which must not exist [default: vgpu-bundle-TIME.tar]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Keep the names of tenants' namespaces, pods, claims and templates
    #[arg(long)]
    pub names: bool,
}
