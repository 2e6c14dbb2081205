//! Raw flags, then a validated configuration. The only file that reads the environment, besides kube's own search
//! for a kubeconfig or a service account.

use std::net::SocketAddr;
use std::time::Duration;

/// Says why pods that ask for GPU fractions are Pending.
#[derive(Debug, clap::Parser)]
#[command(name = "vgpu-controller", version)]
pub struct Flags {
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:9441")]
    pub http_address: String,
    /// Seconds after which an unchanged reason is said again.
    #[arg(long, default_value = "300")]
    pub repeat_after: String,
    /// Events per second that are written at most, over all pods.
    #[arg(long, default_value = "10")]
    pub events_per_second: String,
    /// Name under which events are written.
    #[arg(long, env = "POD_NAME", default_value = "vgpu-controller")]
    pub instance: String,
    /// Log filter, for example info or vgpu_controller=debug.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

/// Flags that make sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub http_address: SocketAddr,
    pub repeat_after: Duration,
    pub events_per_second: u32,
    pub instance: String,
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
        if tracing_subscriber::EnvFilter::try_new(&flags.log).is_err() {
            return Err(FlagError::Log(flags.log));
        }
        Ok(Self {
            http_address,
            repeat_after,
            events_per_second,
            instance: flags.instance,
            log: flags.log,
        })
    }
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
            ("--log", "vgpu_controller=loud"),
        ] {
            let error = config(&[&format!("{flag}={value}")]).expect_err(value).to_string();
            assert!(error.starts_with(&format!("{flag} {value:?} ")), "{error}");
        }
    }
}
