//! Decodes an object that a user wrote as the API server decodes it, with errors that name the field and its value.
//!
//! ```text
//!  JSON value ─► Field (null: not given; a number may be a quantity) ─► a type of ours or of k8s-openapi
//! ```
//!
//! Users' objects come from files, so no defaults are filled in and nothing is converted yet. Go reads null as the zero
//! value of every type, and a quantity may be written as a number. Nothing else is converted: a number is not accepted
//! as text. So an annotation `50` without quotes is refused here, as by the API server.

use std::fmt;

use serde::de::value::StringDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer as _, Visitor};
use serde_json::Value;

/// Why an object cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// `metadata.annotations[a.b/c]`; empty for the object itself.
    pub field: String,
    /// Shows the value, and says what to write instead.
    pub message: String,
}

/// Decodes an object.
///
/// # Errors
/// The first field that cannot be decoded.
pub fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, DecodeError> {
    T::deserialize(Field(object))
}

/// Decodes an object from its JSON text. Objects of the API server need none of the conversions, so these are tried
/// only if plain decoding fails.
///
/// # Errors
/// The text is not JSON, or as of [`decode`].
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    serde_json::from_str(text).or_else(|_| {
        let object: Value = serde_json::from_str(text).map_err(de::Error::custom)?;
        // Null is the zero value of a field, but no object.
        match object {
            Value::Null => Err(Field(&object).is_not(Wanted::Object)),
            _ => decode(&object),
        }
    })
}

impl DecodeError {
    /// Returns the same error for a field below `parent`.
    #[must_use]
    pub fn below(mut self, parent: &str) -> Self {
        let dot = if parent.is_empty() || self.field.is_empty() || self.field.starts_with('[') {
            ""
        } else {
            "."
        };
        self.field = format!("{parent}{dot}{}", self.field);
        self
    }

    fn of(message: impl Into<String>) -> Self {
        Self {
            field: String::new(),
            message: message.into(),
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::of(message.to_string())
    }
}

/// The kind of value that a type expects.
#[derive(Clone, Copy)]
enum Wanted {
    Text,
    Number,
    Boolean,
    List,
    Object,
}

/// A value in an object.
struct Field<'v>(&'v Value);

impl Field<'_> {
    fn is_not(&self, wanted: Wanted) -> DecodeError {
        let value = self.0.to_string();
        let shown = vgpu_quantity::shortened(&value);
        let as_text = self.0.as_str().map(str::trim).unwrap_or_default();
        let is_scalar = !self.0.is_array() && !self.0.is_object();
        DecodeError::of(match wanted {
            Wanted::Text if is_scalar => format!("{shown} is not a text; write it in quotes: \"{shown}\""),
            Wanted::Text => format!("{shown} is not a text; write one value in quotes"),
            Wanted::Number if as_text.parse::<i64>().is_ok() => {
                format!("{shown} is not a number; write it without quotes: {as_text}")
            }
            Wanted::Number => format!("{shown} is not a number; write a whole number, without quotes"),
            Wanted::Boolean => format!("{shown} is neither true nor false; write one of them, without quotes"),
            Wanted::List if is_scalar => format!("{shown} is not a list; write [{shown}] for a list of it"),
            Wanted::List => format!("{shown} is not a list; write [...], or - before each entry"),
            Wanted::Object => format!("{shown} is not an object; write fields below it, as in {{field: value}}"),
        })
    }

    /// The text of a quantity: the API server also accepts a number, and reads null as 0.
    fn amount(&self) -> Option<String> {
        match self.0 {
            Value::Null => Some("0".to_owned()),
            Value::Number(number) => Some(match number.as_f64().filter(|_| number.is_f64()) {
                // 1e3 without quotes: the shortest text of the number is the one that was written.
                Some(float) => float.to_string(),
                None => number.to_string(),
            }),
            _ => None,
        }
    }

    fn number<'v, V: Visitor<'v>>(&self, visitor: V) -> Result<V::Value, DecodeError> {
        let Value::Number(number) = self.0 else {
            return match self.0 {
                Value::Null => visitor.visit_u64(0),
                _ => Err(self.is_not(Wanted::Number)),
            };
        };
        match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => visitor.visit_u64(number),
            (_, Some(number), _) => visitor.visit_i64(number),
            // Kubernetes' YAML reader turns 1.0 into 1.
            (.., Some(float)) if float.fract() == 0.0 && float.abs() < 9e15 => visitor.visit_i64(float as i64),
            (.., float) => visitor.visit_f64(float.unwrap_or_default()),
        }
    }
}

impl<'de> Deserializer<'de> for Field<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(_) => self.deserialize_seq(visitor),
            Value::Object(_) => self.deserialize_map(visitor),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (_, Some(number)) => visitor.visit_i64(number),
                _ => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.amount().filter(|_| name == "Quantity") {
            Some(amount) => {
                let amount: StringDeserializer<DecodeError> = amount.into_deserializer();
                visitor.visit_newtype_struct(amount)
            }
            None => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_borrowed_str(""),
            Value::String(text) => visitor.visit_borrowed_str(text),
            _ => Err(self.is_not(Wanted::Text)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::String(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            _ => Err(self.is_not(Wanted::Text)),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_bool(false),
            Value::Bool(value) => visitor.visit_bool(*value),
            _ => Err(self.is_not(Wanted::Boolean)),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.number(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.number(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.number(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.number(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_seq(Items(0, [].iter())),
            Value::Array(items) => visitor.visit_seq(Items(0, items.iter())),
            _ => Err(self.is_not(Wanted::List)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_map(Entries(None, None)),
            Value::Object(map) => visitor.visit_map(Entries(Some(map.iter()), None)),
            _ => Err(self.is_not(Wanted::Object)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

/// The entries of a list, and the index of the next one.
struct Items<'v>(usize, std::slice::Iter<'v, Value>);

impl<'v> de::SeqAccess<'v> for Items<'v> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'v>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some(value) = self.1.next() else { return Ok(None) };
        let place = format!("[{}]", self.0);
        self.0 += 1;
        let read = seed.deserialize(Field(value));
        read.map(Some).map_err(|error| error.below(&place))
    }
}

/// The fields of an object, and the one whose value comes next.
struct Entries<'v>(Option<serde_json::map::Iter<'v>>, Option<(&'v str, &'v Value)>);

impl<'v> de::MapAccess<'v> for Entries<'v> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'v>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let next = self.0.as_mut().and_then(Iterator::next);
        self.1 = next.map(|(key, value)| (key.as_str(), value));
        let Some((key, _)) = self.1 else { return Ok(None) };
        // If the type has no such key, the error names the key itself.
        let read = seed.deserialize(de::value::BorrowedStrDeserializer::<DecodeError>::new(key));
        read.map(Some).map_err(|error| error.below(key))
    }

    fn next_value_seed<V: DeserializeSeed<'v>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let Some((key, value)) = self.1 else {
            return Err(DecodeError::of("a value without a key"));
        };
        let read = seed.deserialize(Field(value));
        read.map_err(|error| match key.contains(['.', '/']) {
            true => error.below(&format!("[{key}]")),
            false => error.below(key),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;
    use vgpu_quantity::Quantity;

    use super::*;

    /// Fields of all kinds that objects have.
    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Thing {
        text: String,
        number: i32,
        flag: bool,
        list: Vec<Thing>,
        texts: Vec<String>,
        map: BTreeMap<String, String>,
        amounts: BTreeMap<String, Quantity>,
        one: Option<Box<Thing>>,
        source: Option<Source>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Source {
        FromClass,
    }

    /// A quantity as in k8s-openapi: a text in a type of this name.
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename = "Quantity")]
    struct Text(String);

    #[test]
    fn null_is_a_field_that_was_not_given() {
        for field in [
            "text", "number", "flag", "list", "texts", "map", "amounts", "one", "source",
        ] {
            assert_eq!(decode::<Thing>(&json!({field: null})), Ok(Thing::default()), "{field}");
        }
        assert_eq!(decode::<Thing>(&Value::Null), Ok(Thing::default()));
        let inner: Thing =
            decode(&json!({"map": {"a": null}, "texts": [null], "list": [null], "amounts": {"a": null}})).unwrap();
        assert_eq!(
            (&*inner.map["a"], &*inner.texts[0], &inner.list[0]),
            ("", "", &Thing::default())
        );
        assert!(inner.amounts["a"].is_zero());
    }

    #[test]
    fn a_quantity_may_be_a_number() {
        for (written, text) in [
            (json!("20Gi"), "20Gi"),
            (json!(20), "20"),
            (json!(-3), "-3"),
            (json!(0.5), "0.5"),
            (json!(1e3), "1000"),
            (json!(null), "0"),
        ] {
            assert_eq!(decode(&written), Ok(Text(text.to_owned())), "{written}");
            let ours: Quantity = decode::<Option<Quantity>>(&written).unwrap().unwrap_or_default();
            assert_eq!(ours, text.parse().unwrap(), "{written}");
        }
        assert_eq!(decode::<Thing>(&json!({"number": 1.0})).unwrap().number, 1);
    }

    /// A thing, and how the error about it begins.
    const MISTAKES: &str = r#"
{"map": {"a.b/c": 50}} | map[a.b/c]: 50 is not a text; write it in quotes: "50"
{"list": [{}, {"text": true}]} | list[1].text: true is not a text; write it in quotes: "true"
{"text": [1]} | text: [1] is not a text; write one value in quotes
{"texts": "a"} | texts: "a" is not a list; write ["a"] for a list of it
{"list": {"a": 1}} | list: {"a":1} is not a list; write [...], or - before each entry
{"one": {"number": "80"}} | one.number: "80" is not a number; write it without quotes: 80
{"number": 5000000000} | number: invalid value: integer `5000000000`, expected i32
{"number": "x"} | number: "x" is not a number; write a whole number, without quotes
{"flag": "true"} | flag: "true" is neither true nor false; write one of them, without quotes
{"map": []} | map: [] is not an object; write fields below it, as in {field: value}
{"one": "x"} | one: "x" is not an object; write fields below it, as in {field: value}
["x"] | ["x"] is not an object; write fields below it, as in {field: value}
{"amounts": {"memory": "20GB"}} | amounts.memory: "20GB" is not a quantity
{"source": 1} | source: 1 is not a text; write it in quotes: "1"
{"source": "x"} | source: unknown variant `x`, expected `FromClass`"#;

    #[test]
    fn an_error_names_field_and_value_and_says_what_to_write() {
        for row in MISTAKES.trim().lines() {
            let (object, said) = row.split_once(" | ").expect("two cells");
            let object: Value = serde_json::from_str(object).expect(row);
            let error = decode::<Thing>(&object).unwrap_err().to_string();
            assert!(error.starts_with(said) && error.len() < 200, "{object}: {error}");
        }
        let long = decode::<Thing>(&json!({"text": ["x".repeat(1000)]}))
            .unwrap_err()
            .to_string();
        assert!(long.starts_with("text: [\"xxx") && long.len() < 200, "{long}");
        let known = decode::<Thing>(&json!({"source": "FromClass"})).unwrap().source;
        assert_eq!(known, Some(Source::FromClass));
        let error = decode::<Thing>(&json!({"map": {"a/b": 1}})).unwrap_err();
        assert!(
            error
                .below("spec.template")
                .to_string()
                .starts_with("spec.template.map[a/b]: 1 is not")
        );
    }

    #[test]
    fn a_text_is_read_in_the_same_way() {
        assert_eq!(from_json(r#"{"text": "a"}"#), decode::<Thing>(&json!({"text": "a"})));
        assert_eq!(from_json(r#"{"amounts": null, "flag": null}"#), Ok(Thing::default()));
        let error = from_json::<Thing>(r#"{"texts": [1]}"#).unwrap_err();
        assert_eq!(error.field, "texts[0]");
        assert!(from_json::<Thing>("{").unwrap_err().to_string().contains("EOF"));
        let error = from_json::<Thing>("null").unwrap_err();
        assert!(error.to_string().starts_with("null is not an object"), "{error}");
    }
}
