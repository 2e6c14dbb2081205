//! Raw flags, then a validated configuration. The only file that reads the environment, besides kube's own search
//! for a kubeconfig or a service account.

mod name;
mod translate;

use std::net::SocketAddr;
use std::time::Duration;

use vgpu_api::config::AllocationPolicy;

pub(crate) use self::name::is_name;
pub use self::translate::TranslateFlags;
use crate::webhook;

/// Explains why pods that ask for GPU fractions are Pending, and allocates them or leaves that to kube-scheduler.
#[derive(Debug, clap::Parser)]
#[command(name = "vgpu-controller", version, args_conflicts_with_subcommands = true)]
pub struct Flags {
    /// Instead of the controller.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:9441")]
    pub http_address: String,
    /// Seconds after which an unchanged reason is repeated.
    #[arg(long, default_value = "300")]
    pub repeat_after: String,
    /// The limit of events per second, over all pods.
    #[arg(long, default_value = "10")]
    pub events_per_second: String,
    /// Name of this replica in events (reportingInstance) and in the Lease.
    #[arg(long, env = "POD_NAME", default_value = "vgpu-controller")]
    pub instance: String,
    /// What allocates: kube-scheduler, or this controller for the devices that are tainted for it.
    #[arg(long, value_enum, default_value_t)]
    pub allocator: Allocator,
    /// Allocation policy for claims whose VgpuConfig, and whose class's, names none.
    #[arg(long, default_value = "binpack")]
    pub policy: String,
    /// How long devices are held for a pod that is not bound yet: seconds or minutes, for example 30s.
    #[arg(long, default_value = "30s")]
    pub hold_timeout: String,
    /// Namespace of the Lease by which one replica leads.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub lease_namespace: String,
    /// Name of that Lease.
    #[arg(long, default_value = "vgpu-controller")]
    pub lease_name: String,
    /// Take scheduling gates off by VgpuQuotas. Without it pods with the gate dra.vgpu/quota wait forever.
    #[arg(long)]
    pub quota: bool,
    /// How long a pod in budget waits before pods over budget are evicted for it: seconds or minutes, for example 60s.
    #[arg(long, default_value = "60s")]
    pub quota_evict_after: String,
    /// Sum up what nodes report of their shares, into one VgpuUsage a namespace.
    #[arg(long)]
    pub usage: bool,
    #[command(flatten)]
    pub translate: TranslateFlags,
    /// Log filter, for example info or vgpu_controller=debug.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Exits with 1 and the names while pods have claims of this driver. The chart runs it before `helm uninstall`.
    CheckUninstall(CheckUninstallFlags),
}

/// The Helm release to name in the commands that it prints.
#[derive(Debug, clap::Args)]
pub struct CheckUninstallFlags {
    /// Name of the Helm release.
    #[arg(long)]
    pub release: String,
    /// Namespace of the Helm release.
    #[arg(long)]
    pub namespace: String,
    /// Revision of the Helm release.
    #[arg(long)]
    pub revision: u32,
}

/// Who allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Allocator {
    #[default]
    Scheduler,
    Controller,
}

/// The settings of controller mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerMode {
    pub policy: AllocationPolicy,
    pub hold_timeout: Duration,
}

/// The Lease by which one replica leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    pub namespace: String,
    pub name: String,
}

/// The validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub http_address: SocketAddr,
    pub repeat_after: Duration,
    pub events_per_second: u32,
    pub instance: String,
    /// `None`: kube-scheduler allocates.
    pub controller: Option<ControllerMode>,
    /// `None`: pods of other systems are left alone.
    pub webhook: Option<webhook::Config>,
    /// Namespaces have quotas and budgets.
    pub quota: bool,
    /// How long a pod in budget waits before others are evicted for it.
    pub quota_evict_after: Duration,
    /// True if each namespace gets a VgpuUsage.
    pub usage: bool,
    pub lease: LeaseName,
    pub log: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("--http-address {0:?} is not an address with a port; write one, for example 0.0.0.0:9441")]
    HttpAddress(String),
    #[error("--repeat-after {0:?} is not a number of seconds from 10 to 86400")]
    RepeatAfter(String),
    #[error("--events-per-second {0:?} is not a number from 1 to 1000")]
    EventsPerSecond(String),
    #[error("--instance {0:?} is not a name of 1 to 128 characters")]
    Instance(String),
    #[error("--policy {0:?} is none of {known}", known = AllocationPolicy::ALL.map(AllocationPolicy::name).join(", "))]
    Policy(String),
    #[error("--hold-timeout {0:?} is not a time from 5s to 10m; write seconds or minutes, for example 30s")]
    HoldTimeout(String),
    #[error(
        "--quota-evict-after: {0:?} is not a time of at least one second; write seconds or minutes, for example 60s"
    )]
    QuotaEvictAfter(String),
    #[error(
        "--lease-namespace {0:?} is not a name of a namespace; write the one that the controller runs in, for example dra-driver-vgpu"
    )]
    LeaseNamespace(String),
    #[error("--lease-name {0:?} is not a name of a Lease; write lower case letters, digits, `-` and `.`")]
    LeaseName(String),
    #[error("{0}")]
    Translate(#[from] translate::TranslateError),
    #[error("--log {0:?} is not a log filter; write one, for example info or vgpu_controller=debug")]
    Log(String),
}

impl TryFrom<Flags> for Config {
    type Error = FlagError;

    fn try_from(flags: Flags) -> Result<Self, FlagError> {
        let Ok(http_address) = flags.http_address.parse() else {
            return Err(FlagError::HttpAddress(flags.http_address));
        };
        let repeat_after = match flags.repeat_after.parse() {
            Ok(seconds @ 10..=86_400) => Duration::from_secs(seconds),
            _ => return Err(FlagError::RepeatAfter(flags.repeat_after)),
        };
        let events_per_second = match flags.events_per_second.parse() {
            Ok(events @ 1..=1000) => events,
            _ => return Err(FlagError::EventsPerSecond(flags.events_per_second)),
        };
        if flags.instance.is_empty() || flags.instance.len() > 128 {
            return Err(FlagError::Instance(flags.instance));
        }
        let Ok(policy) = flags.policy.parse() else {
            return Err(FlagError::Policy(flags.policy));
        };
        let controller = ControllerMode {
            policy,
            hold_timeout: match duration(&flags.hold_timeout) {
                Some(hold) if (5..=600).contains(&hold.as_secs()) => hold,
                _ => return Err(FlagError::HoldTimeout(flags.hold_timeout)),
            },
        };
        let lease = LeaseName {
            namespace: flags.lease_namespace,
            name: flags.lease_name,
        };
        if !is_name(&lease.namespace, 63) || lease.namespace.contains('.') {
            return Err(FlagError::LeaseNamespace(lease.namespace));
        }
        if !is_name(&lease.name, 253) {
            return Err(FlagError::LeaseName(lease.name));
        }
        let quota_evict_after = match duration(&flags.quota_evict_after) {
            Some(after) if !after.is_zero() => after,
            _ => return Err(FlagError::QuotaEvictAfter(flags.quota_evict_after)),
        };
        let webhook = flags.translate.config(&lease.namespace)?;
        if tracing_subscriber::EnvFilter::try_new(&flags.log).is_err() {
            return Err(FlagError::Log(flags.log));
        }
        Ok(Self {
            http_address,
            repeat_after,
            events_per_second,
            instance: flags.instance,
            controller: (flags.allocator == Allocator::Controller).then_some(controller),
            webhook,
            quota: flags.quota,
            quota_evict_after,
            usage: flags.usage,
            lease,
            log: flags.log,
        })
    }
}

/// Whole seconds or minutes, with their unit.
fn duration(text: &str) -> Option<Duration> {
    let (number, factor) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s')?, 1),
    };
    let number: u64 = number.parse().ok()?;
    Some(Duration::from_secs(number.checked_mul(factor)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn config(args: &[&str]) -> Result<Config, FlagError> {
        Config::try_from(Flags::try_parse_from([&["vgpu-controller"], args].concat()).expect("clap takes any text"))
    }

    #[test]
    fn defaults_are_valid() {
        let config = config(&["--instance=x", "--log=info"]).unwrap();
        assert_eq!(config.http_address.port(), 9441);
        assert_eq!(config.repeat_after, Duration::from_secs(300));
        assert_eq!(config.events_per_second, 10);
        assert_eq!(config.controller, None);
    }

    #[test]
    fn controller_mode_holds_for_half_a_minute() {
        let args = ["--instance=x", "--log=info", "--lease-namespace=ns"];
        let all = |more: &str| config(&[&args[..], &["--allocator=controller", more]].concat()).unwrap();
        let mode = |more: &str| all(more).controller;
        assert_eq!(
            mode("--lease-name=a.b"),
            Some(ControllerMode {
                policy: AllocationPolicy::Binpack,
                hold_timeout: Duration::from_secs(30),
            })
        );
        let lease = LeaseName {
            namespace: "ns".into(),
            name: "a.b".into(),
        };
        assert_eq!(all("--lease-name=a.b").lease, lease);
        assert_eq!(
            mode("--hold-timeout=2m").unwrap().hold_timeout,
            Duration::from_secs(120)
        );
        assert_eq!(mode("--policy=whole-gpus").unwrap().policy, AllocationPolicy::WholeGpus);
    }

    #[test]
    fn a_policy_that_is_none_is_refused_with_all_there_are() {
        assert_eq!(
            config(&["--policy=Spread"]).unwrap_err().to_string(),
            "--policy \"Spread\" is none of binpack, spread, numa, pcie, nvlink, whole-gpus, first-fit"
        );
    }

    #[test]
    fn nonsense_is_refused_with_the_flag_and_its_value() {
        for (flag, value) in [
            ("--http-address", "9441"),
            ("--http-address", "host:port"),
            ("--repeat-after", "9"),
            ("--repeat-after", "5m"),
            ("--repeat-after", "-1"),
            ("--events-per-second", "0"),
            ("--events-per-second", "1001"),
            ("--instance", ""),
            ("--policy", ""),
            ("--policy", "best"),
            ("--hold-timeout", "30"),
            ("--hold-timeout", "4s"),
            ("--hold-timeout", "11m"),
            ("--hold-timeout", "99999999999999999999m"),
            ("--lease-namespace", "a.b"),
            ("--lease-namespace", ""),
            ("--lease-name", "-a"),
            ("--lease-name", "a/b"),
            ("--webhook-address", "9443"),
            ("--webhook-name", "a/b"),
            ("--webhook-name", "a.b"),
            ("--translate-dialects", "hami,HAMi"),
            ("--translate-dialects", "hami,"),
            ("--translate-high-priority-class", "High"),
            ("--log", "vgpu_controller=loud"),
        ] {
            let error = config(&[&format!("{flag}={value}")]).expect_err(value).to_string();
            assert!(error.starts_with(&format!("{flag} {value:?} ")), "{error}");
        }
    }
}
