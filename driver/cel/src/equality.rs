//! Equality of values, with the cost of deep comparisons.

use crate::evaluate::Evaluation;
use crate::value::{Fault, Value, no_such_overload};

impl<'v> Evaluation<'v> {
    /// `==`. Values of different types are unequal, except that Kubernetes' own types cannot be compared with others.
    pub(crate) fn equals(&mut self, a: &Value<'v>, b: &Value<'v>) -> Result<bool, Fault> {
        self.work(1)?;
        self.work_on(a)?;
        Ok(match (a, b) {
            (Value::Null, Value::Null) => true,
            (Value::Null, _) | (_, Value::Null) => false,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Str(a), Value::Str(b)) => a.as_str() == b.as_str(),
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::Timestamp(a, _), Value::Timestamp(b, _)) => a == b,
            (Value::Quantity(_), Value::Quantity(crate::value::Amount::Computed(_))) => return no_such_overload(),
            (Value::Quantity(a), Value::Quantity(b)) => a.get() == b.get(),
            (Value::Semver(a), Value::Semver(b)) => a.cmp_precedence(b).is_eq(),
            (Value::Ip(a), Value::Ip(b)) => a == b,
            (Value::Cidr(a, x), Value::Cidr(b, y)) => a == b && x == y,
            (Value::Url(a), Value::Url(b)) => a.text() == b.text(),
            (Value::Format(a), Value::Format(b)) => a.name == b.name,
            (Value::Optional(None), Value::Optional(None)) => true,
            (Value::Optional(Some(a)), Value::Optional(Some(b))) => return self.equals(a, b),
            (Value::List(a), Value::List(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b.iter()) {
                    // cel-go treats values as different only if the comparison gives a definite answer.
                    if self.is_unlike(a, b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                self.work(a.len())?;
                for (key, value) in a.entries()? {
                    match b.find(&key)? {
                        None => return Ok(false),
                        Some(other) if self.is_unlike(&value, &other)? => return Ok(false),
                        Some(_) => {}
                    }
                }
                true
            }
            (
                Value::Quantity(_)
                | Value::Semver(_)
                | Value::Ip(_)
                | Value::Cidr(..)
                | Value::Url(_)
                | Value::Format(_),
                _,
            ) => return no_such_overload(),
            _ => crate::value::compare_numbers(a, b).is_some_and(|order| order.is_some_and(std::cmp::Ordering::is_eq)),
        })
    }

    fn is_unlike(&mut self, a: &Value<'v>, b: &Value<'v>) -> Result<bool, Fault> {
        match self.equals(a, b) {
            Ok(equal) => Ok(!equal),
            Err(Fault::Error(_)) => Ok(false),
            Err(stop) => Err(stop),
        }
    }

    /// Returns true if the values are definitely equal.
    pub(crate) fn is_equal(&mut self, a: &Value<'v>, b: &Value<'v>) -> Result<bool, Fault> {
        match self.equals(a, b) {
            Err(Fault::Error(_)) => Ok(false),
            other => other,
        }
    }
}
