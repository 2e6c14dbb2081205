//! Implements `vgpu advise`: for each request of a namespace's claims, prints the amounts that would have been enough.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use vgpu_allocator::few;
use vgpu_planner::Time;
use vgpu_quantity::{format_bytes, read_bytes, readable_bytes};

use super::advice::{Advice, Measured, on_one_gpu};
use super::answer::{UsageError, end, rendered};
use super::figures::{rough, stale};
use super::seen::Seen;
use super::shares::{self, Share};
use crate::cluster::Cluster;
use crate::flags::AdviseFlags;
use crate::offline::now;
use crate::output::clean;

const LOOKS_BACK: &str = "This looks back only, at shares that are held now: a program that will need more than it has used is refused it. \
                          GPU time is by minutes; shorter bursts used more.\n";

pub(crate) fn main(flags: &AdviseFlags) -> ExitCode {
    end("advise", run(flags))
}

fn run(flags: &AdviseFlags) -> Result<String, UsageError> {
    let cluster = Cluster::connect(&flags.cluster, flags.namespace.as_deref())?;
    let seen = Seen::read("advise", &cluster)?;
    let mut shares = shares::of(&seen);
    if let Some(subject) = &flags.subject {
        let known = known(&shares);
        shares.retain(|share| is_of(share, subject));
        if shares.is_empty() {
            return Err(UsageError::UnknownSubject {
                subject: subject.clone(),
                namespace: cluster.namespace().to_owned(),
                known,
            });
        }
    }
    let status = seen.usage.as_ref().map(|(_, status)| status);
    let not_listed = status.map_or(0, |status| status.not_listed);
    // The time of the figures, not now: the shares may have been idle since, or vgpu-controller may not run and they
    // may have used more.
    let groups = groups(shares, status.and_then(|status| Time::parse(&status.as_of)));
    let mut notes: Vec<String> = status
        .and_then(|status| stale(&status.as_of, now()))
        .into_iter()
        .collect();
    notes.extend(unlisted(not_listed));
    notes.extend(seen.missing.iter().map(|line| format!("not known: {line}")));
    let text = || match status {
        Some(_) => text(&groups, cluster.namespace(), &notes),
        None => format!(
            "{}, so there is nothing to measure\n",
            clean(&seen.without_usage(cluster.namespace()))
        ),
    };
    let document = || json!({"requests": groups, "notListed": not_listed, "missing": seen.missing});
    Ok(rendered(flags.output, text, document))
}

/// Says that the VgpuUsage leaves out shares, which the advice does not cover.
fn unlisted(shares: u32) -> Option<String> {
    (shares > 0).then(|| {
        format!(
            "{shares} shares with less memory are not listed, so nothing is known of them: they may have used more, or been \
             refused memory"
        )
    })
}

/// Returns true if a share belongs to `KIND/NAME`, or to anything of this name.
fn is_of(share: &Share, subject: &str) -> bool {
    let (kind, name) = subject.rsplit_once('/').unwrap_or(("", subject));
    let kind = kind.to_lowercase();
    let is = |kinds: &[&str]| kind.is_empty() || kinds.contains(&kind.as_str());
    (is(&["claim", "resourceclaim"]) && share.usage.claim == name)
        || (is(&["pod"]) && share.pods.iter().any(|pod| pod == name))
        || (is(&["template", "resourceclaimtemplate"]) && share.template.as_deref() == Some(name))
        || share.workloads.iter().any(|workload| match kind.is_empty() {
            true => workload.rsplit('/').next() == Some(name),
            false => *workload == format!("{kind}/{name}"),
        })
}

fn known(shares: &[Share]) -> String {
    let names: Vec<String> = shares
        .iter()
        .map(|share| match (&share.workloads[..], &share.pods[..]) {
            ([workload, ..], _) => workload.clone(),
            (_, [pod, ..]) => format!("pod/{pod}"),
            _ => format!("claim/{}", share.usage.claim),
        })
        .collect();
    match names.is_empty() {
        true => "it holds none".to_owned(),
        false => few("it has ", names),
    }
}

/// Shares with equal requests from one template, or one claim.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    claims: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    is_translated: bool,
    is_extended: bool,
    memory_bytes: u64,
    cores: u32,
    memory_peak_bytes: Option<u64>,
    gpu_time_peak_percent: Option<u32>,
    gpu_time_mean_percent: Option<u32>,
    /// When the first of these shares was prepared.
    since: String,
    measured_seconds: u64,
    /// Memory of the smallest GPU with such a share.
    gpu_memory_bytes: Option<u64>,
    advice: Advice,
}

/// Groups shares by the template or claim that their user wrote. A share of unknown size is left out.
fn groups(shares: Vec<Share>, as_of: Option<Time>) -> Vec<Group> {
    let mut by_request: BTreeMap<_, Vec<Share>> = BTreeMap::new();
    for share in shares {
        // A deleted claim cannot be changed.
        let Some(memory) =
            read_bytes(&share.usage.usage.memory).filter(|memory| *memory > 0 && !share.usage.without_claim)
        else {
            continue;
        };
        let written = share.template.clone().unwrap_or_else(|| share.usage.claim.clone());
        let key = (
            share.template.is_none(),
            written,
            share.request.clone(),
            memory,
            share.usage.usage.cores,
        );
        by_request.entry(key).or_default().push(share);
    }
    let groups = by_request.into_iter();
    groups
        .map(|((.., request, memory, cores), shares)| group(request, memory, cores, &shares, as_of))
        .collect()
}

fn group(request: Option<String>, memory: u64, cores: u32, shares: &[Share], as_of: Option<Time>) -> Group {
    let usages = || shares.iter().map(|share| &share.usage.usage);
    // If one share's figure is missing, the group's figure is not known.
    let most = |figure: &dyn Fn(&vgpu_api::usage::ShareUse) -> Option<u32>| {
        usages()
            .map(figure)
            .collect::<Option<Vec<_>>>()
            .and_then(|all| all.into_iter().max())
    };
    let peaks: Option<Vec<u64>> = usages().map(|usage| read_bytes(&usage.memory_peak)).collect();
    let since = usages().filter_map(|usage| Time::parse(&usage.since)).min();
    let measured = since
        .zip(as_of)
        .map_or(Duration::ZERO, |(since, as_of)| as_of.since(since));
    let seen = Measured {
        memory,
        cores,
        // Unknown if a share's refusals, or its use since its node's last write, are not known: it may have needed
        // more.
        memory_peak: peaks
            .filter(|_| {
                let mut all = shares.iter().map(|share| &share.usage);
                all.all(|share| share.usage.refusals.is_some() && !share.use_not_known)
            })
            .and_then(|peaks| peaks.into_iter().max()),
        time_peak: most(&|usage| usage.gpu_time_peak_percent),
        time_mean: most(&|usage| usage.gpu_time_mean_percent),
        refusals: usages().filter_map(|usage| usage.refusals).fold(0, u64::saturating_add),
        measured,
    };
    Group {
        template: shares.first().and_then(|share| share.template.clone()),
        claims: shares.iter().map(|share| share.usage.claim.clone()).collect(),
        request,
        is_translated: shares.iter().any(|share| share.is_translated),
        is_extended: shares.iter().any(|share| share.is_extended),
        memory_bytes: memory,
        cores,
        memory_peak_bytes: seen.memory_peak,
        gpu_time_peak_percent: seen.time_peak,
        gpu_time_mean_percent: seen.time_mean,
        since: since.map(Time::text).unwrap_or_default(),
        measured_seconds: measured.as_secs(),
        gpu_memory_bytes: shares.iter().map(|share| share.gpu_memory).min().flatten(),
        advice: Advice::of(&seen),
    }
}

fn text(groups: &[Group], namespace: &str, notes: &[String]) -> String {
    if groups.is_empty() {
        return format!(
            "namespace {} holds no share of a GPU, so there is nothing to measure\n",
            clean(namespace)
        );
    }
    let mut text: String = groups.iter().map(|group| clean_lines(&group.to_string())).collect();
    text.push_str(&saved(groups));
    text.push_str(LOOKS_BACK);
    text.extend(notes.iter().map(|line| clean(line) + "\n"));
    text
}

fn clean_lines(text: &str) -> String {
    text.lines().map(|line| clean(line) + "\n").collect()
}

/// Returns what all advice together would save, in one line.
fn saved(groups: &[Group]) -> String {
    let (mut memory, mut cores) = (0_u64, 0_u64);
    for group in groups {
        if let Advice::Enough {
            memory_bytes,
            cores: advised,
        } = group.advice
        {
            let shares = u64::try_from(group.claims.len()).unwrap_or(u64::MAX);
            memory = memory.saturating_add(shares.saturating_mul(group.memory_bytes.saturating_sub(memory_bytes)));
            cores = cores.saturating_add(shares.saturating_mul(group.cores.saturating_sub(advised).into()));
        }
    }
    match (memory, cores) {
        (0, 0) => String::new(),
        (memory, cores) => format!("together it would save {} and {cores} cores\n", readable_bytes(memory)),
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.claims.len();
        match &self.template {
            Some(template) => write!(f, "ResourceClaimTemplate {template}")?,
            None => write!(f, "{}", few("ResourceClaim ", self.claims.clone()))?,
        }
        if let Some(request) = &self.request {
            write!(f, ", request {request}")?;
        }
        let shares = if count == 1 {
            "1 share".to_owned()
        } else {
            format!("{count} shares")
        };
        let has = amounts(self.memory_bytes, self.cores);
        let for_long = rough(Duration::from_secs(self.measured_seconds));
        writeln!(f, ": {shares} of {has}, measured for {for_long}, since {}", self.since)?;
        let used = readable_bytes(self.memory_peak_bytes.unwrap_or(0));
        let least = format_bytes(self.memory_bytes);
        match self.advice {
            Advice::TooEarly => writeln!(f, "  no advice: it has to be measured for 10 minutes"),
            Advice::NotMeasured => writeln!(f, "  no advice: the memory that it has used is not known"),
            Advice::NeedsMore { refusals } => writeln!(
                f,
                "  memory was refused {refusals} times, so that {least} is too small: ask for more; how much cannot be known \
                 before it runs without a refusal (docs/out-of-memory.md)"
            ),
            Advice::Unused => writeln!(
                f,
                "  it has used no memory of the GPU: if its program needs none, remove the claim from the pod"
            ),
            Advice::Enough { memory_bytes, cores } => {
                let time = match (self.gpu_time_peak_percent, self.gpu_time_mean_percent) {
                    (Some(peak), Some(mean)) => {
                        format!("{peak}% of the GPU's time in its busiest minute, {mean}% in the mean")
                    }
                    _ => "an unknown part of the GPU's time".to_owned(),
                };
                writeln!(f, "  used at most: {used}; {time}")?;
                if (memory_bytes, cores) == (self.memory_bytes, self.cores) {
                    return writeln!(f, "  its requests fit: leave them");
                }
                writeln!(f, "  would have been enough: {}", amounts(memory_bytes, cores))?;
                if self.is_translated {
                    writeln!(
                        f,
                        "  write it in the words of the system that the pod was written for (docs/migrate.md)"
                    )?;
                } else if self.is_extended {
                    writeln!(
                        f,
                        "  an extended resource has no amounts: write it in a claim of class vgpu, and have the pod name that"
                    )?;
                } else {
                    writeln!(f, "  write it in {}", self.field())?;
                }
                self.fmt_gpus(f, memory_bytes, cores)
            }
        }
    }
}

impl Group {
    /// The field in which the user writes the amounts.
    fn field(&self) -> String {
        let request = self.request.as_deref().unwrap_or("*");
        let (spec, what) = match self.template {
            Some(_) => ("spec.spec", "template"),
            None => ("spec", "claim"),
        };
        // The class gpu takes whole GPUs, so it has no amounts.
        let class = match self.gpu_memory_bytes {
            Some(gpu) if gpu <= self.memory_bytes => ", of class vgpu",
            _ => "",
        };
        let at = match request.split_once('/') {
            Some((request, name)) => format!("requests[{request}].firstAvailable[{name}]"),
            None => format!("requests[{request}].exactly"),
        };
        format!("{spec}.devices.{at}.capacity.requests of a new {what}{class}, because a {what} cannot be changed")
    }

    fn fmt_gpus(&self, f: &mut std::fmt::Formatter<'_>, memory: u64, cores: u32) -> std::fmt::Result {
        let Some(gpu) = self.gpu_memory_bytes else {
            return Ok(());
        };
        let now = on_one_gpu(gpu, self.memory_bytes, self.cores);
        let then = on_one_gpu(gpu, memory, cores);
        writeln!(
            f,
            "  on one GPU of {}: {now} such shares fit now, {then} would",
            readable_bytes(gpu)
        )
    }
}

/// Memory, and cores if there are any, as a user writes them.
fn amounts(memory: u64, cores: u32) -> String {
    let memory = format_bytes(memory);
    match cores {
        0 => format!("memory: {memory}"),
        cores => format!("memory: {memory}, cores: {cores}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_api::usage::{ClaimUse, ShareUse};

    fn share(claim: &str, template: Option<&str>, memory: &str, peak: &str) -> Share {
        Share {
            usage: ClaimUse {
                claim: claim.to_owned(),
                usage: ShareUse {
                    refusals: Some(0),
                    memory: memory.to_owned(),
                    memory_peak: peak.to_owned(),
                    cores: 25,
                    gpu_time_peak_percent: Some(8),
                    gpu_time_mean_percent: Some(4),
                    since: "2026-01-01T00:00:00Z".to_owned(),
                    ..ShareUse::default()
                },
                ..ClaimUse::default()
            },
            pods: vec![format!("{claim}-pod")],
            workloads: vec!["deployment/train".to_owned()],
            template: template.map(str::to_owned),
            request: Some("gpu".to_owned()),
            gpu_memory: Some(80 << 30),
            ..Share::default()
        }
    }

    fn three_hours() -> Option<Time> {
        Time::parse("2026-01-01T03:00:00Z")
    }

    #[test]
    fn the_shares_of_a_template_have_one_advice_by_the_most_that_any_used() {
        let shares = vec![
            share("a", Some("part"), "20Gi", "2Gi"),
            share("b", Some("part"), "20Gi", "9Gi"),
        ];
        let wanted = "\
ResourceClaimTemplate part, request gpu: 2 shares of memory: 20Gi, cores: 25, measured for 3h, since 2026-01-01T00:00:00Z
  used at most: 9Gi; 8% of the GPU's time in its busiest minute, 4% in the mean
  would have been enough: memory: 10Gi, cores: 10
  write it in spec.spec.devices.requests[gpu].exactly.capacity.requests of a new template, because a template cannot be changed
  on one GPU of 80Gi: 4 such shares fit now, 8 would
together it would save 20Gi and 30 cores
";
        assert_eq!(
            text(&groups(shares, three_hours()), "team", &[]),
            format!("{wanted}{LOOKS_BACK}")
        );
    }

    #[test]
    fn shares_with_other_requests_and_claims_without_a_template_are_advised_apart() {
        let gone = |mut share: Share| {
            share.usage.without_claim = true;
            share
        };
        let shares = vec![
            share("a", Some("part"), "20Gi", "2Gi"),
            share("b", Some("part"), "10Gi", "2Gi"),
            share("c", None, "20Gi", "2Gi"),
            gone(share("d", None, "20Gi", "2Gi")),
            share("e", None, "", "2Gi"),
        ];
        let groups = groups(shares, three_hours());
        let claims: Vec<_> = groups.iter().map(|group| group.claims.join(",")).collect();
        assert_eq!(claims, ["b", "a", "c"]);
        assert!(groups[2].field().starts_with("spec.devices.requests[gpu]"));
    }

    #[test]
    fn what_is_not_known_of_one_share_is_not_known_of_all() {
        let shares = vec![
            share("a", Some("part"), "20Gi", "2Gi"),
            share("b", Some("part"), "20Gi", ""),
        ];
        assert_eq!(groups(shares, three_hours())[0].advice, Advice::NotMeasured);
        let mut timeless = share("a", Some("part"), "20Gi", "2Gi");
        timeless.usage.usage.since = String::new();
        assert_eq!(groups(vec![timeless], three_hours())[0].advice, Advice::TooEarly);
        assert_eq!(
            groups(vec![share("a", None, "20Gi", "2Gi")], None)[0].advice,
            Advice::TooEarly
        );
    }

    #[test]
    fn of_a_share_whose_use_now_is_not_known_nothing_is_advised() {
        let mut silent = share("a", None, "20Gi", "2Gi");
        silent.usage.use_not_known = true;
        assert_eq!(groups(vec![silent], three_hours())[0].advice, Advice::NotMeasured);
        assert!(unlisted(0).is_none() && unlisted(100).unwrap().starts_with("100 shares "));
    }

    #[test]
    fn the_place_to_write_it_exists_and_takes_amounts() {
        let field = |change: &dyn Fn(&mut Share)| {
            let mut share = share("a", None, "20Gi", "2Gi");
            change(&mut share);
            groups(vec![share], three_hours())[0].to_string()
        };
        let words =
            "write it in spec.devices.requests[gpu].firstAvailable[small].capacity.requests of a new claim, because";
        let text = field(&|share| share.request = Some("gpu/small".to_owned()));
        assert!(text.contains(words), "{text}");
        let text = field(&|share| share.gpu_memory = Some(20 << 30));
        assert!(text.contains(" of a new claim, of class vgpu, because"), "{text}");
        let text = field(&|share| share.is_extended = true);
        assert!(text.contains("an extended resource has no amounts"), "{text}");
    }

    #[test]
    fn a_workload_is_found_by_each_of_its_names() {
        let share = share("a", Some("part"), "20Gi", "2Gi");
        for subject in [
            "a",
            "a-pod",
            "part",
            "train",
            "claim/a",
            "pod/a-pod",
            "template/part",
            "Deployment/train",
        ] {
            assert!(is_of(&share, subject), "{subject}");
        }
        for subject in ["b", "pod/a", "claim/train", "job/train", ""] {
            assert!(!is_of(&share, subject), "{subject}");
        }
        assert_eq!(known(&[share]), "it has deployment/train");
    }

    #[test]
    fn a_refusal_is_no_saving_and_a_name_has_no_escape_sequence() {
        let mut refused = share("a\u{1b}[2J", None, "20Gi", "2Gi");
        refused.usage.usage.refusals = Some(4);
        let text = text(&groups(vec![refused], three_hours()), "team", &[]);
        assert!(
            text.contains("memory was refused 4 times, so that 20Gi is too small"),
            "{text}"
        );
        assert!(!text.contains("save") && !text.contains('\u{1b}'), "{text}");
    }
}
