//! Mistakes in requests for our classes that an allocator does not check for: units, configs, a monitor without admin
//! access. Without this check the claim would only be refused much later, by Prepare on the node.

use vgpu_allocator::model::{ClaimSpec, DeviceClass, Exactly, RequestedConfig};
use vgpu_api::config::{self, ConfigError, Entry, Grant};
use vgpu_api::request::{self, RequestError, Requested};
use vgpu_api::{DRIVER_NAME, capacity, device_type as types};
use vgpu_quantity::format_bytes;

use crate::state::State;

/// A mistake in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// True if the claim can never be prepared. False if only a part of the request is missing.
    pub refused: bool,
    /// Begins with claim and request.
    pub text: String,
}

#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("{0} (a claim cannot be changed: create it anew)")]
    Request(#[from] RequestError),
    #[error("{0} (a claim cannot be changed: create it anew)")]
    Config(#[from] ConfigError),
    #[error(
        "{0}: kube-scheduler before Kubernetes 1.38 finds no GPU for a capacity whose name has the domain {DRIVER_NAME}; if this cluster is older, write memory and cores without it (a claim cannot be changed: create it anew)"
    )]
    LongName(String),
    #[error(
        "class vgpu-monitor gives administrative access alone; set adminAccess: true in the request, in a namespace with the label resource.kubernetes.io/admin-access: \"true\""
    )]
    MonitorWithoutAdmin,
    #[error(
        "{at}: {wanted} is more than any GPU of the cluster has, which is {largest}; a translated pod cannot be changed: make it anew with at most that, or add a node with a larger GPU"
    )]
    MoreThanAnyGpu {
        at: String,
        wanted: String,
        largest: String,
    },
}

impl Mistake {
    /// The mistakes in the requests of a claim (`namespace/name`). A request with one valid alternative has none.
    #[must_use]
    pub fn of(claim: &str, spec: &ClaimSpec, state: &State) -> Vec<Self> {
        let mut mistakes = Vec::new();
        let asks: Vec<SubRequest<'_>> = sub_requests(spec).collect();
        let configs = &spec.devices.config;
        for alternatives in asks.chunk_by(|a, b| a.at.0 == b.at.0) {
            let of_one: Option<Vec<Self>> = alternatives
                .iter()
                .map(|ask| mistake(claim, ask, configs, state))
                .collect();
            mistakes.extend(of_one.unwrap_or_default());
        }
        mistakes
    }
}

fn mistake(claim: &str, ask: &SubRequest<'_>, configs: &[RequestedConfig], state: &State) -> Option<Mistake> {
    // The allocator reports a class that does not exist.
    let class = state.class(&ask.exactly.class).filter(|class| class.is_ours())?;
    let error = check(ask, class, configs, state).err()?;
    Some(Mistake {
        refused: !matches!(error, CheckError::MonitorWithoutAdmin | CheckError::LongName(_)),
        text: format!("claim {claim}, request {}: {error}", ask.name()),
    })
}

fn check(
    ask: &SubRequest<'_>,
    class: &DeviceClass,
    configs: &[RequestedConfig],
    state: &State,
) -> Result<(), CheckError> {
    let Exactly {
        capacity, admin_access, ..
    } = ask.exactly;
    let amounts = capacity.iter().flat_map(|capacity| &capacity.requests);
    let amounts: Vec<(&str, String)> = amounts.map(|(name, amount)| (&**name, amount.to_string())).collect();
    let at = format!("{}.capacity.requests", ask.path());
    let requested = request::check(
        &at,
        &class.metadata.name,
        amounts.iter().map(|(name, amount)| (*name, &**amount)),
    )?;
    check_config(ask, class, configs, &requested, state)?;
    if class.device_type() == types::MONITOR && !admin_access.unwrap_or(false) {
        return Err(CheckError::MonitorWithoutAdmin);
    }
    // Last, because the version of the cluster is not known here: from 1.38 on it is no mistake.
    if state.is_of_scheduler() && capacity.as_ref().is_some_and(|capacity| capacity.has_domain) {
        return Err(CheckError::LongName(at));
    }
    Ok(())
}

/// Checks the configs of the class and of the claim as Prepare would.
fn check_config(
    ask: &SubRequest<'_>,
    class: &DeviceClass,
    configs: &[RequestedConfig],
    requested: &Requested,
    state: &State,
) -> Result<(), CheckError> {
    let parse = |configs: &[RequestedConfig], prefix: &str| {
        configs
            .iter()
            .enumerate()
            .filter(|(_, config)| Entry::applies(&config.requests, &ask.name()))
            // Other drivers check their own configs.
            .filter_map(|(index, config)| Some((index, config.opaque.as_ref().filter(|of| of.driver == DRIVER_NAME)?)))
            .map(|(index, opaque)| {
                Entry::parse(format!("{prefix}config[{index}].opaque.parameters"), &opaque.parameters)
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let effective = config::merge(
        &parse(
            &class.spec.config,
            &format!("DeviceClass {} spec.", class.metadata.name),
        )?,
        &parse(configs, "spec.devices.")?,
    )?;
    let largest = state.published().map(|published| published.largest).max();
    // Without a GPU there is nothing to compare the config with, and the missing GPU is reported instead.
    let Some(largest) = largest.filter(|memory| *memory > 0 && class.device_type() == types::GPU) else {
        return Ok(());
    };
    // The claim's author wrote it for a system that refuses such a request. In our own claims it is a shortage like any
    // other.
    if let Some(wanted) = requested.memory.filter(|wanted| *wanted > largest)
        && effective.report_as.is_some()
    {
        return Err(CheckError::MoreThanAnyGpu {
            at: format!("{}.capacity.requests[{}]", ask.path(), capacity::MEMORY),
            wanted: format_bytes(wanted),
            largest: format_bytes(largest),
        });
    }
    // By default a request gets all of a GPU's memory, and no guaranteed time.
    effective.check(&Grant {
        memory: requested.memory.unwrap_or(largest),
        device_memory: largest,
        cores: requested.cores.unwrap_or(0),
    })?;
    Ok(())
}

/// A request without alternatives, or one alternative of a request.
#[derive(Debug, Clone, Copy)]
pub struct SubRequest<'a> {
    pub request: &'a str,
    pub alternative: Option<&'a str>,
    /// The path in the claim.
    pub at: (usize, Option<usize>),
    pub exactly: &'a Exactly,
}

impl SubRequest<'_> {
    /// The name that the allocator and the results use.
    #[must_use]
    pub fn name(&self) -> String {
        match self.alternative {
            Some(alternative) => format!("{}/{alternative}", self.request),
            None => self.request.to_owned(),
        }
    }

    fn path(&self) -> String {
        match self.at {
            (request, None) => format!("spec.devices.requests[{request}].exactly"),
            (request, Some(alternative)) => {
                format!("spec.devices.requests[{request}].firstAvailable[{alternative}]")
            }
        }
    }
}

/// All requests of a claim and their alternatives, in order.
pub fn sub_requests(spec: &ClaimSpec) -> impl Iterator<Item = SubRequest<'_>> {
    spec.devices.requests.iter().enumerate().flat_map(|(index, request)| {
        let exactly = request.exactly.iter().map(move |exactly| SubRequest {
            request: &request.name,
            alternative: None,
            at: (index, None),
            exactly,
        });
        let alternatives = request.first_available.iter().enumerate();
        let alternatives = alternatives.map(move |(place, alternative)| SubRequest {
            request: &request.name,
            alternative: Some(&alternative.name),
            at: (index, Some(place)),
            exactly: &alternative.ask,
        });
        exactly.chain(alternatives)
    })
}
