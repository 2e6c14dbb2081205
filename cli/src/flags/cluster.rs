//! The flags that choose a cluster and its user, by kubectl's names.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug, Default)]
pub struct ClusterFlags {
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Kubeconfig [default: those of KUBECONFIG, else ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// User to act as
    #[arg(long = "as", value_name = "USER")]
    pub user: Option<String>,
    /// Group to act as, with --as; may be given several times
    #[arg(long = "as-group", value_name = "GROUP", requires = "user")]
    pub groups: Vec<String>,
}
