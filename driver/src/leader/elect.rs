//! Leader election by a Lease of coordination.k8s.io, which one replica holds at a time.
//!
//! ```text
//!  every RETRY: get ─► Elector::next ─┬─ create, take, renew ─► PUT with resourceVersion ─► Term until begin + DEADLINE
//!                                     └─ wait: another holds it, and was seen to renew it within its duration
//! ```
//!
//! As in client-go, clocks of different machines are never compared: a lease has expired if this process has not seen
//! it change for as long as its duration. A term ends [`DEADLINE`] after the start of the request that acquired or
//! renewed it, well before another replica may take the lease. Each term has an epoch that no other term ever has; an
//! expired term is not continued.
//!
//! Failure modes: without the API server a leader stops at its deadline, and leads again in a new term once it has the
//! lease back. The fence protects against a leader that was stopped and does not notice it (`vgpu_planner`'s `term`);
//! the lease alone is not enough. A replica that exits gives the lease back, so that the other does not have to wait.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use vgpu_planner::{Term, Time};

use super::clock::Clock;

const DURATION: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(4);

/// What to do with the lease.
#[derive(Debug, Clone, PartialEq)]
enum Next {
    Create,
    /// It is free, was given back, or has run out.
    Take,
    Renew,
    Wait,
}

/// What one replica knows about the lease.
#[derive(Debug)]
struct Elector {
    /// Unique for this process: a restarted container has another one.
    identity: String,
    /// The version that was seen last, and when it was seen first.
    seen: Option<(String, Time)>,
    term: Option<Term>,
}

impl Elector {
    /// Decides what to do with the lease in its current state.
    fn next(&mut self, lease: Option<&Lease>, now: Time) -> Next {
        let Some(lease) = lease else {
            self.seen = None;
            return Next::Create;
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match self.seen.take() {
            Some((seen, since)) if seen == version => since,
            _ => now,
        };
        self.seen = Some((version, since));
        let spec = lease.spec.as_ref();
        let holder = spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .unwrap_or_default();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(DURATION, Duration::from_secs);
        match holder {
            "" => Next::Take,
            holder if holder == self.identity => Next::Renew,
            _ if now.since(since) >= duration => Next::Take,
            _ => Next::Wait,
        }
    }

    /// The lease was written: the term continues, or a new one begins.
    fn won(&mut self, begun: Time, now: Time, epoch: impl FnOnce() -> String) {
        let until = begun.after(DEADLINE);
        let goes_on = self.term.take().filter(|term| now < term.until);
        self.term = match until > now {
            true => Some(Term {
                epoch: goes_on.map_or_else(epoch, |term| term.epoch),
                until,
            }),
            // The request took longer than the term.
            false => None,
        };
    }

    fn lost(&mut self) {
        self.term = None;
    }

    /// The lease object that this replica writes.
    fn lease(&self, old: Option<Lease>, name: &str, next: &Next) -> Lease {
        let now = MicroTime(Timestamp::now());
        let old = old.unwrap_or_default();
        let spec = old.spec.unwrap_or_default();
        let is_new = *next != Next::Renew;
        let transitions = spec.lease_transitions.unwrap_or(0);
        Lease {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..old.metadata
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: if is_new { Some(now.clone()) } else { spec.acquire_time },
                renew_time: Some(now),
                lease_transitions: Some(transitions.saturating_add(i32::from(*next == Next::Take))),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// Takes part in the election until it is stopped.
#[derive(Debug)]
pub(crate) struct Election {
    api: Api<Lease>,
    name: String,
    clock: Arc<Clock>,
    elector: Elector,
    terms: watch::Sender<Option<Term>>,
}

impl Election {
    /// Makes a candidate. Also returns a channel with the current term of this replica.
    pub(crate) fn new(
        client: &Client,
        namespace: &str,
        name: &str,
        instance: &str,
        clock: Arc<Clock>,
    ) -> (Self, watch::Receiver<Option<Term>>) {
        let (terms, receiver) = watch::channel(None);
        let elector = Elector {
            identity: format!("{instance}_{}", uuid::Uuid::new_v4()),
            seen: None,
            term: None,
        };
        let election = Self {
            api: Api::namespaced(client.clone(), namespace),
            name: name.to_owned(),
            clock,
            elector,
            terms,
        };
        (election, receiver)
    }

    /// Runs until `stop` completes, then gives the lease back.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = self.turn() => {}
                () = &mut stop => break,
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = &mut stop => break,
            }
        }
        self.terms.send_replace(None);
        if self.elector.term.is_some()
            && let Err(error) = tokio::time::timeout(TIMEOUT, self.legacy_patch())
                .await
                .unwrap_or(Ok(()))
        {
            tracing::warn!(%error, "the lease could not be given back and runs out by itself");
        }
    }

    async fn turn(&mut self) {
        let begun = self.clock.now();
        let was_leading = self.elector.term.is_some();
        match tokio::time::timeout(TIMEOUT, self.attempt(begun)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, lease = self.name, "the lease could not be looked at or written"),
            Err(_) => tracing::warn!(lease = self.name, "the lease: no answer within {TIMEOUT:?}"),
        }
        let now = self.clock.now();
        if self.elector.term.as_ref().is_some_and(|term| term.until <= now) {
            self.elector.lost();
        }
        match (was_leading, &self.elector.term) {
            (false, Some(term)) => tracing::info!(epoch = term.epoch, "holds the lease"),
            (true, None) => tracing::warn!("holds the lease no more"),
            _ => {}
        }
        self.terms.send_if_modified(|term| {
            let is_new = *term != self.elector.term;
            term.clone_from(&self.elector.term);
            is_new
        });
    }

    async fn attempt(&mut self, begun: Time) -> Result<(), kube::Error> {
        let lease = self.api.get_opt(&self.name).await?;
        let next = self.elector.next(lease.as_ref(), begun);
        if next == Next::Wait {
            self.elector.lost();
            return Ok(());
        }
        if next != Next::Renew {
            // This begins a new term, whoever held the lease before.
            self.elector.lost();
        }
        let lease = self.elector.lease(lease, &self.name, &next);
        let parameters = PostParams::default();
        let written = match next {
            Next::Create => self.api.create(&parameters, &lease).await,
            _ => self.api.replace(&self.name, &parameters, &lease).await,
        };
        match written {
            Ok(_) => {
                let epoch = || uuid::Uuid::new_v4().to_string();
                self.elector.won(begun, self.clock.now(), epoch);
                Ok(())
            }
            // Another replica was faster; the next turn shows which.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.elector.lost();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn legacy_patch(&self) -> Result<(), kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            return Ok(());
        };
        let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|spec| spec.holder_identity.as_deref() == Some(self.elector.identity.as_str()))
        else {
            return Ok(());
        };
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        self.api
            .replace(&self.name, &PostParams::default(), &lease)
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elector() -> Elector {
        Elector {
            identity: "me".into(),
            seen: None,
            term: None,
        }
    }

    fn lease(holder: &str, version: &str) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(version.into()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(15),
                lease_transitions: Some(4),
                ..LeaseSpec::default()
            }),
        }
    }

    const fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1_000)
    }

    #[test]
    fn a_lease_runs_out_when_it_is_not_seen_to_change() {
        let mut elector = elector();
        assert_eq!(elector.next(None, at(0)), Next::Create);
        assert_eq!(elector.next(Some(&lease("other", "1")), at(100)), Next::Wait);
        assert_eq!(elector.next(Some(&lease("other", "1")), at(114)), Next::Wait);
        assert_eq!(elector.next(Some(&lease("other", "2")), at(114)), Next::Wait, "renewed");
        assert_eq!(elector.next(Some(&lease("other", "2")), at(128)), Next::Wait);
        assert_eq!(elector.next(Some(&lease("other", "2")), at(129)), Next::Take);
        assert_eq!(elector.next(Some(&lease("", "3")), at(130)), Next::Take, "given back");
        assert_eq!(elector.next(Some(&lease("me", "4")), at(500)), Next::Renew);
    }

    #[test]
    fn a_term_that_ran_out_is_not_gone_on_with() {
        let mut elector = elector();
        let mut epochs = 0;
        let mut won = |elector: &mut Elector, begun, now| {
            elector.won(begun, now, || {
                epochs += 1;
                format!("epoch-{epochs}")
            });
            elector.term.clone().map(|term| (term.epoch, term.until))
        };
        assert_eq!(won(&mut elector, at(0), at(1)), Some(("epoch-1".into(), at(10))));
        assert_eq!(won(&mut elector, at(9), at(9)), Some(("epoch-1".into(), at(19))));
        assert_eq!(won(&mut elector, at(19), at(19)), Some(("epoch-2".into(), at(29))));
        assert_eq!(won(&mut elector, at(20), at(30)), None, "an answer that took too long");
    }

    #[test]
    fn a_new_holder_is_counted_and_a_renewal_is_not() {
        let elector = elector();
        let taken = elector.lease(Some(lease("other", "7")), "name", &Next::Take);
        let renewed = elector.lease(Some(lease("me", "8")), "name", &Next::Renew);
        let spec = |lease: &Lease| lease.spec.clone().unwrap();
        assert_eq!(spec(&taken).lease_transitions, Some(5));
        assert_eq!(spec(&renewed).lease_transitions, Some(4));
        assert_eq!(spec(&taken).holder_identity.as_deref(), Some("me"));
        assert_eq!(
            taken.metadata.resource_version.as_deref(),
            Some("7"),
            "the precondition"
        );
    }
}
