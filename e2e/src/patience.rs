//! One time factor for the whole run. It stretches every wait for a cluster, so that a run on a slow machine is slow
//! instead of failing.
//!
//! ```text
//! VGPU_TIME_FACTOR, else a short measurement ─► the first half ─ Prepared ─► root's half ─ VGPU_TIME_FACTOR ─► keeper, init
//! ```
//! Limits are chosen for a quiet machine with two cores. The measurement runs a short shell script twice at the same
//! time, so that a machine with one core is measured as half as fast. It uses the best of a few attempts: a short
//! burst of another program does not matter, but permanent load does.
//!
//! Failure modes: a factor that is not a number from 1 to 1000 is refused before anything is built. A process that did
//! not inherit a factor reads the variable, else measures at its first wait.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, io};

use anyhow::{Context, Result, bail};

/// Sets the factor instead of the measurement.
pub const VARIABLE: &str = "VGPU_TIME_FACTOR";
const LARGEST: f64 = 1000.0;

/// Measures arithmetic and the start of processes. Other programs do the work, so that a debug build of this one gives
/// the same result.
const SCRIPT: &str = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done
i=0; while [ $i -lt 50 ]; do sh -c :; i=$((i+1)); done";
/// Two concurrent runs of the script take 0.13 s on a quiet 2-core cloud machine. A machine that is up to half slower gets no
/// longer limits, because they have room for it.
const REFERENCE: Duration = Duration::from_millis(200);
const TRIES: usize = 3;

static FACTOR: OnceLock<f64> = OnceLock::new();

/// Returns an error if the variable is set and is not a factor.
pub fn check() -> Result<()> {
    of_variable().map(drop)
}

/// Determines the factor of this run before anything is built: from the variable, else by measuring.
pub fn start() -> Result<f64> {
    let factor = match of_variable()? {
        Some(factor) => factor,
        None => measured(two_runs).context("cannot measure how fast this machine is")?,
    };
    Ok(*FACTOR.get_or_init(|| factor))
}

/// Sets the factor that the first half of this run determined.
pub(crate) fn inherit(factor: f64) {
    let _ = FACTOR.set(factor); // a factor that is already set is the same one
}

/// The factor, at least 1.
#[must_use]
pub fn factor() -> f64 {
    *FACTOR.get_or_init(|| {
        let set = of_variable().ok().flatten();
        set.unwrap_or_else(|| measured(two_runs).unwrap_or(1.0))
    })
}

/// The limit of a wait on this machine. `nominal` is enough on a quiet one with two cores.
#[must_use]
pub fn stretched(nominal: Duration) -> Duration {
    by(factor(), nominal)
}

/// The same in the form of other programs' options: `90s`.
#[must_use]
pub fn argument(nominal: Duration) -> String {
    whole_seconds(stretched(nominal))
}

/// The same as an option of kubectl and helm: `--timeout=90s`.
#[must_use]
pub fn timeout(nominal: Duration) -> String {
    format!("--timeout={}", argument(nominal))
}

/// Environment that passes the factor on to a child process, for `Command::envs`.
#[must_use]
pub fn for_child() -> [(&'static str, String); 1] {
    [(VARIABLE, factor().to_string())]
}

fn of_variable() -> Result<Option<f64>> {
    match env::var(VARIABLE) {
        Err(env::VarError::NotPresent) => Ok(None),
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => parse(&text).map(Some),
        Err(env::VarError::NotUnicode(text)) => parse(&text.to_string_lossy()).map(Some),
    }
}

fn parse(text: &str) -> Result<f64> {
    match text.trim().parse::<f64>() {
        Ok(factor) if (1.0..=LARGEST).contains(&factor) => Ok(factor),
        _ => bail!("{VARIABLE}={text}: write a number from 1 to {LARGEST}, for example 2.5, or unset it"),
    }
}

fn by(factor: f64, nominal: Duration) -> Duration {
    if factor <= 1.0 {
        return nominal;
    }
    Duration::try_from_secs_f64(nominal.as_secs_f64() * factor).unwrap_or(nominal)
}

fn whole_seconds(limit: Duration) -> String {
    format!("{}s", limit.as_secs() + u64::from(limit.subsec_nanos() > 0))
}

/// The best of a few attempts, as a factor in tenths.
fn measured(mut attempt: impl FnMut() -> io::Result<Duration>) -> io::Result<f64> {
    let mut best = attempt()?;
    for _ in 1..TRIES {
        if best <= REFERENCE {
            break;
        }
        best = best.min(attempt()?);
    }
    let factor = (best.as_secs_f64() / REFERENCE.as_secs_f64() * 10.0).ceil() / 10.0;
    Ok(factor.clamp(1.0, LARGEST))
}

fn two_runs() -> io::Result<Duration> {
    let start = Instant::now();
    let run = || -> io::Result<Child> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT]).stdin(Stdio::null()).stdout(Stdio::null());
        shell.stderr(Stdio::null()).spawn()
    };
    let mut first = run()?;
    let second = run().and_then(|mut second| second.wait());
    let first = first.wait();
    if first?.success() && second?.success() {
        Ok(start.elapsed())
    } else {
        Err(io::Error::other("sh does not run a short script to its end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_a_number_from_1_to_1000() {
        for good in ["1", "1.0", " 2.5 ", "1000"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "0", "0.9", "-1", "-0", "nan", "inf", "-inf", "ten", "2,5", "2x", "1001", "1e9", " ", "--",
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("VGPU_TIME_FACTOR={bad}: ")), "{error}");
        }
    }

    #[test]
    fn limits_are_stretched_and_never_shortened() {
        let nominal = Duration::from_secs(90);
        assert_eq!(by(1.0, nominal), nominal);
        assert_eq!(by(0.5, nominal), nominal);
        assert_eq!(by(2.5, nominal), Duration::from_secs(225));
        assert_eq!(by(1000.0, Duration::MAX), Duration::MAX);
        assert_eq!(whole_seconds(Duration::from_millis(90_001)), "91s");
        assert_eq!(whole_seconds(nominal), "90s");
    }

    #[test]
    fn the_best_try_counts_and_a_fast_machine_is_asked_once() {
        let of = |tries: &[u64]| {
            let (mut left, mut asked) = (tries.iter(), 0);
            let factor = measured(|| {
                asked += 1;
                left.next()
                    .map(|ms| Duration::from_millis(*ms))
                    .ok_or(io::Error::other("asked too often"))
            });
            (factor.unwrap(), asked)
        };
        let near = |(factor, asked): (f64, usize), wanted: f64, tries: usize| {
            assert!(
                (factor - wanted).abs() < 1e-9 && asked == tries,
                "{factor} after {asked}"
            );
        };
        near(of(&[120]), 1.0, 1);
        near(of(&[5_000, 130]), 1.0, 2);
        near(of(&[2_000, 1_990, 2_400]), 10.0, 3);
        near(of(&[300, 250, 280]), 1.3, 3);
        near(of(&[10_000_000, 9_000_000, 9_000_000]), 1000.0, 3);
        assert!(measured(|| Err(io::Error::other("no sh"))).is_err());
    }

    #[test]
    fn this_machine_is_measured_in_bounded_time() {
        let start = Instant::now();
        let factor = measured(two_runs).unwrap();
        assert!((1.0..=LARGEST).contains(&factor), "{factor}");
        let bound = by(factor, REFERENCE) * (TRIES as u32) * 10; // attempts may differ, and other tests run at the same time
        assert!(
            start.elapsed() < bound.max(Duration::from_secs(20)),
            "{:?}",
            start.elapsed()
        );
    }
}
