//! Values during an evaluation.
//!
//! Values from the expression or the device are borrowed for the evaluation ('v), and only computed values are owned,
//! so that an ordinary selector allocates nothing.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use vgpu_quantity::Quantity;

use crate::device::{self, Device};
use crate::libraries::format::Format;
use crate::libraries::semver::Version;
use crate::libraries::url::Url;

#[derive(Clone)]
pub(crate) enum Value<'v> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Str(Text<'v>),
    Bytes(Arc<[u8]>),
    List(Arc<Vec<Value<'v>>>),
    Map(Map<'v>),
    Optional(Option<Arc<Value<'v>>>),
    Type(&'static str),
    /// In nanoseconds.
    Duration(i64),
    /// Nanoseconds since 1970, and the zone in which it was written (seconds east of UTC), which affects only its
    /// text.
    Timestamp(i128, i32),
    Quantity(Amount<'v>),
    Semver(Version),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Url(Arc<Url>),
    Format(&'static Format),
}

#[derive(Clone)]
pub(crate) enum Text<'v> {
    Borrowed(&'v str),
    Owned(Arc<str>),
}

#[derive(Clone)]
pub(crate) enum Amount<'v> {
    Borrowed(&'v Quantity),
    Owned(Arc<Quantity>),
    /// The result of add and sub. Kubernetes cannot compare *with* such a value by == (only the other way round).
    Computed(Arc<Quantity>),
}

#[derive(Clone)]
pub(crate) enum Map<'v> {
    Owned(Arc<BTreeMap<Key, (Value<'v>, Value<'v>)>>),
    /// The variable `device`.
    Device(&'v Device),
    /// `device.attributes`: an unknown domain is an empty map.
    Attributes(&'v Device),
    /// `device.capacity`.
    Capacities(&'v Device),
    /// The attributes of one domain.
    AttributesOf(&'v Device, Text<'v>),
    /// The capacities of one domain.
    CapacitiesOf(&'v Device, Text<'v>),
}

/// A key of a map. Whole numbers are equal keys, whatever their type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Null,
    Bool(bool),
    Number(i128),
    Double(u64),
    Str(Arc<str>),
    Duration(i64),
    Timestamp(i128),
}

/// The reason why there is no value.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// An error of the expression: `false && error` is still false.
    Error(Arc<str>),
    /// Ends the evaluation.
    Stop(Stop),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Cost,
    Work,
    /// Kubernetes' packages panic here, so the whole expression has no answer.
    Unanswerable,
}

pub(crate) type Out<'v> = Result<Value<'v>, Fault>;

pub(crate) fn error<T>(message: impl Into<Arc<str>>) -> Result<T, Fault> {
    Err(Fault::Error(message.into()))
}

pub(crate) fn no_such_overload<T>() -> Result<T, Fault> {
    error("no such overload")
}

// === impl Text ===

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Owned(text) => text,
        }
    }
}

// === impl Amount ===

impl Amount<'_> {
    pub(crate) fn get(&self) -> &Quantity {
        match self {
            Self::Borrowed(quantity) => quantity,
            Self::Owned(quantity) | Self::Computed(quantity) => quantity,
        }
    }
}

// === impl Value ===

impl<'v> Value<'v> {
    pub(crate) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Str(Text::Owned(text.into()))
    }

    pub(crate) fn list(elements: Vec<Self>) -> Self {
        Self::List(Arc::new(elements))
    }

    pub(crate) fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// The size in Kubernetes' cost model: runes, elements or bytes; 1 for every other value.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Str(text) => text.as_str().chars().count() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::List(list) => list.len() as u64,
            Self::Map(map) => map.len() as u64,
            Self::Optional(Some(value)) => value.size(),
            Self::Ip(ip) => {
                if ip.is_ipv4() {
                    4
                } else {
                    16
                }
            }
            Self::Cidr(_, bits) => u64::from(*bits).div_ceil(8),
            _ => 1,
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Str(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(..) => "google.protobuf.Timestamp",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Ip(_) => "net.IP",
            Self::Cidr(..) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Format(_) => "kubernetes.NamedFormat",
        }
    }

    /// This value as a key of a map.
    pub(crate) fn key(&self) -> Option<Key> {
        Some(match self {
            Self::Null => Key::Null,
            Self::Duration(d) => Key::Duration(*d),
            Self::Timestamp(t, _) => Key::Timestamp(*t),
            Self::Bool(b) => Key::Bool(*b),
            Self::Int(i) => Key::Number(i128::from(*i)),
            Self::Uint(u) => Key::Number(i128::from(*u)),
            Self::Double(d) => match whole(*d) {
                Some(number) => Key::Number(number),
                None => Key::Double(d.to_bits()),
            },
            Self::Str(text) => Key::Str(match text {
                Text::Owned(text) => Arc::clone(text),
                Text::Borrowed(text) => Arc::from(*text),
            }),
            _ => return None,
        })
    }

    /// Compares two values of types that have an order.
    pub(crate) fn compare(&self, other: &Self) -> Result<Ordering, Fault> {
        let order = match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Uint(a), Self::Uint(b)) => a.cmp(b),
            (Self::Str(a), Self::Str(b)) => a.as_str().cmp(b.as_str()),
            (Self::Bytes(a), Self::Bytes(b)) => a.cmp(b),
            (Self::Duration(a), Self::Duration(b)) => a.cmp(b),
            (Self::Timestamp(a, _), Self::Timestamp(b, _)) => a.cmp(b),
            _ => match compare_numbers(self, other) {
                Some(Some(order)) => order,
                Some(None) => return error("NaN values cannot be ordered"),
                None => return no_such_overload(),
            },
        };
        Ok(order)
    }
}

/// The double as a whole number, if it is one and fits in 64 bits.
pub(crate) fn whole(d: f64) -> Option<i128> {
    (d.fract() == 0.0 && d.abs() <= 1.9e19).then_some(d as i128)
}

/// Compares two numbers of any types. Returns `None` if one is not a number, `Some(None)` if one is NaN.
pub(crate) fn compare_numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Option<Ordering>> {
    let exact = |value: &Value<'_>| match value {
        Value::Int(i) => Some(i128::from(*i)),
        Value::Uint(u) => Some(i128::from(*u)),
        _ => None,
    };
    Some(match (exact(a), exact(b), a, b) {
        (Some(a), Some(b), ..) => Some(a.cmp(&b)),
        (_, _, Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Some(a), _, _, Value::Double(b)) => order_of_double(*b, a).map(Ordering::reverse),
        (_, Some(b), Value::Double(a), _) => order_of_double(*a, b),
        _ => return None,
    })
}

fn order_of_double(d: f64, number: i128) -> Option<Ordering> {
    if d.is_nan() {
        return None;
    }
    if d.abs() > 1.9e19 {
        return Some(if d > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let whole = d.trunc() as i128;
    Some(
        whole
            .cmp(&number)
            .then_with(|| d.fract().partial_cmp(&0.0).unwrap_or(Ordering::Equal)),
    )
}

// === impl Map ===

impl<'v> Map<'v> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Owned(entries) => entries.len(),
            Self::Device(_) => DEVICE_FIELDS.len(),
            Self::Attributes(device) => device::domains(&device.attributes, &device.driver).len(),
            Self::Capacities(device) => device::domains(&device.capacity, &device.driver).len(),
            Self::AttributesOf(device, domain) => {
                device::names(&device.attributes, &device.driver, domain.as_str()).len()
            }
            Self::CapacitiesOf(device, domain) => {
                device::names(&device.capacity, &device.driver, domain.as_str()).len()
            }
        }
    }

    /// Looks up a key. `device.attributes` and `device.capacity` return an empty map for unknown domains.
    pub(crate) fn find(&self, key: &Value<'v>) -> Result<Option<Value<'v>>, Fault> {
        match (self, key) {
            (Self::Owned(entries), _) => Ok(key.key().and_then(|key| entries.get(&key)).map(|(_, v)| v.clone())),
            (_, Value::Str(name)) => self.find_text(name),
            _ => Ok(None),
        }
    }

    pub(crate) fn find_text(&self, name: &Text<'v>) -> Result<Option<Value<'v>>, Fault> {
        Ok(match self {
            Self::Owned(entries) => {
                let key = Key::Str(Arc::from(name.as_str()));
                entries.get(&key).map(|(_, value)| value.clone())
            }
            Self::Device(device) => field(device, name.as_str()),
            Self::Attributes(device) => Some(Value::Map(Self::AttributesOf(device, name.clone()))),
            Self::Capacities(device) => Some(Value::Map(Self::CapacitiesOf(device, name.clone()))),
            Self::AttributesOf(device, domain) => {
                match device::find(&device.attributes, &device.driver, domain.as_str(), name.as_str()) {
                    Some(attribute) => Some(of_attribute(name.as_str(), attribute)?),
                    None => None,
                }
            }
            Self::CapacitiesOf(device, domain) => {
                device::find(&device.capacity, &device.driver, domain.as_str(), name.as_str())
                    .map(|quantity| Value::Quantity(Amount::Borrowed(quantity)))
            }
        })
    }

    /// Returns true if the key exists. Unlike `find`, this returns false for an unknown domain.
    pub(crate) fn contains(&self, key: &Value<'v>) -> Result<bool, Fault> {
        match (self, key) {
            (Self::Attributes(device), Value::Str(domain)) => {
                Ok(device::domains(&device.attributes, &device.driver).contains(&domain.as_str()))
            }
            (Self::Capacities(device), Value::Str(domain)) => {
                Ok(device::domains(&device.capacity, &device.driver).contains(&domain.as_str()))
            }
            _ => Ok(self.find(key)?.is_some()),
        }
    }

    /// All keys with their values.
    pub(crate) fn entries(&self) -> Result<Vec<(Value<'v>, Value<'v>)>, Fault> {
        let text = |name: &'v str| Value::Str(Text::Borrowed(name));
        Ok(match self {
            Self::Owned(entries) => entries.values().cloned().collect(),
            Self::Device(device) => DEVICE_FIELDS
                .iter()
                .filter_map(|name| Some((text(name), field(device, name)?)))
                .collect(),
            Self::Attributes(device) => device::domains(&device.attributes, &device.driver)
                .into_iter()
                .map(|domain| {
                    (
                        text(domain),
                        Value::Map(Self::AttributesOf(device, Text::Borrowed(domain))),
                    )
                })
                .collect(),
            Self::Capacities(device) => device::domains(&device.capacity, &device.driver)
                .into_iter()
                .map(|domain| {
                    (
                        text(domain),
                        Value::Map(Self::CapacitiesOf(device, Text::Borrowed(domain))),
                    )
                })
                .collect(),
            Self::AttributesOf(device, domain) => device::names(&device.attributes, &device.driver, domain.as_str())
                .into_iter()
                .map(|(name, attribute)| Ok((text(name), of_attribute(name, attribute)?)))
                .collect::<Result<_, _>>()?,
            Self::CapacitiesOf(device, domain) => device::names(&device.capacity, &device.driver, domain.as_str())
                .into_iter()
                .map(|(name, quantity)| (text(name), Value::Quantity(Amount::Borrowed(quantity))))
                .collect(),
        })
    }
}

const DEVICE_FIELDS: [&str; 4] = ["allowMultipleAllocations", "attributes", "capacity", "driver"];

fn field<'v>(device: &'v Device, name: &str) -> Option<Value<'v>> {
    Some(match name {
        "driver" => Value::Str(Text::Borrowed(&device.driver)),
        "allowMultipleAllocations" => Value::Bool(device.allow_multiple_allocations),
        "attributes" => Value::Map(Map::Attributes(device)),
        "capacity" => Value::Map(Map::Capacities(device)),
        _ => return None,
    })
}

fn of_attribute<'v>(name: &str, attribute: &'v device::Attribute) -> Out<'v> {
    use device::Attribute;
    let version = |text: &str| match Version::parse(text) {
        Ok(version) => Ok(Value::Semver(version)),
        Err(why) => error(format!("attribute {name}: parse semantic version: {why}")),
    };
    Ok(match attribute {
        Attribute::Bool(b) => Value::Bool(*b),
        Attribute::Int(i) => Value::Int(*i),
        Attribute::String(text) => Value::Str(Text::Borrowed(text)),
        Attribute::Version(text) => version(text)?,
        Attribute::Bools(all) => Value::list(all.iter().map(|b| Value::Bool(*b)).collect()),
        Attribute::Ints(all) => Value::list(all.iter().map(|i| Value::Int(*i)).collect()),
        Attribute::Strings(all) => Value::list(all.iter().map(|s| Value::Str(Text::Borrowed(s))).collect()),
        Attribute::Versions(all) => Value::list(all.iter().map(|text| version(text)).collect::<Result<_, _>>()?),
    })
}
