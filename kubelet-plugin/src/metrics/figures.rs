//! Values and labels of the metrics that are read at each scrape.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Figure {
    Whole(i64),
    Real(f64),
}

/// A metric with a series for each sample whose value is known.
pub(super) struct Metric<S> {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
    pub value: fn(&S) -> Option<Figure>,
}

// === impl Figure ===

impl Figure {
    /// A tenant can write any number into its ledger.
    pub(super) fn bytes(value: u64) -> Self {
        Self::Whole(i64::try_from(value).unwrap_or(i64::MAX))
    }

    fn encode(self, kind: MetricType, encoder: MetricEncoder<'_>) -> fmt::Result {
        match (kind, self) {
            (MetricType::Counter, Self::Whole(value)) => ConstCounter::new(value.unsigned_abs()).encode(encoder),
            (MetricType::Counter, Self::Real(value)) => ConstCounter::new(value).encode(encoder),
            (_, Self::Whole(value)) => ConstGauge::new(value).encode(encoder),
            (_, Self::Real(value)) => ConstGauge::new(value).encode(encoder),
        }
    }
}

impl From<bool> for Figure {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

// === impl Metric ===

impl<S> Metric<S> {
    pub(super) const fn gauge(name: &'static str, help: &'static str, value: fn(&S) -> Option<Figure>) -> Self {
        Self {
            name,
            help,
            kind: MetricType::Gauge,
            value,
        }
    }

    pub(super) const fn counter(name: &'static str, help: &'static str, value: fn(&S) -> Option<Figure>) -> Self {
        Self {
            name,
            help,
            kind: MetricType::Counter,
            value,
        }
    }

    pub(super) fn encode<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        samples: impl IntoIterator<Item = (&'a Labels, &'a S)>,
    ) -> fmt::Result
    where
        S: 'a,
    {
        let known = samples
            .into_iter()
            .filter_map(|(labels, sample)| Some((labels, (self.value)(sample)?)));
        let mut family = encoder.encode_descriptor(self.name, self.help, None, self.kind)?;
        for (labels, figure) in known {
            figure.encode(self.kind, family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

/// A metric that is 1 for each of these sets of labels.
pub(super) fn encode_info(
    encoder: &mut DescriptorEncoder<'_>,
    name: &'static str,
    help: &'static str,
    series: impl IntoIterator<Item = Labels>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for labels in series {
        Figure::Whole(1).encode(MetricType::Gauge, family.encode_family(&labels)?)?;
    }
    Ok(())
}
