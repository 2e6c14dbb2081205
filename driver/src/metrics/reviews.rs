//! The webhook's metrics.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::register::{Labels, register};
use crate::webhook::review::Outcome;

#[derive(Debug, Clone)]
pub(crate) struct Reviews {
    outcomes: Family<Labels, Counter>,
    seconds: Histogram,
    /// A family of one, so that it is absent until the webhook serves.
    certificate: Family<[(&'static str, &'static str); 0], Gauge>,
}

impl Reviews {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            outcomes: register(registry, "webhook_reviews", Family::default()),
            seconds: register(
                registry,
                "webhook_review_seconds",
                Histogram::new(exponential_buckets(0.000_01, 4.0, 8)),
            ),
            certificate: register(registry, "webhook_certificate_expiry_seconds", Family::default()),
        }
    }

    pub(crate) fn answered(&self, outcome: Outcome, took: Duration) {
        self.count(outcome.name());
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn bad(&self) {
        self.count("bad");
    }

    fn count(&self, outcome: &'static str) {
        self.outcomes.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn certificate_until(&self, until: i64) {
        self.certificate.get_or_create(&[]).set(until);
    }
}
