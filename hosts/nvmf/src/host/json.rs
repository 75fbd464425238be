//! JSON of wire structures, under the names that nvme-cli gives their fields.
use serde_json::{Map, Number, Value};

/// A little-endian number of at most 16 bytes.
pub(super) fn number(bytes: &[u8]) -> Value {
    let mut wide = [0; 16];
    for (to, from) in wide.iter_mut().zip(bytes) {
        *to = *from;
    }
    Number::from_u128(u128::from_le_bytes(wide)).map_or(Value::Null, Value::Number)
}

/// Bytes as hex digits.
pub(super) fn hex(bytes: &[u8]) -> Value {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.into()
}

/// Fields that are numbers: `numbers!(structure: vid, errcnt as "error_count")`.
macro_rules! numbers {
    ($of:expr => $object:expr; $($field:ident $(as $name:literal)?),* $(,)?) => {{
        use zerocopy::IntoBytes;
        $(
            #[allow(unused_variables)]
            let name = stringify!($field);
            $( let name = $name; )?
            $object.insert(name.to_owned(), $crate::host::json::number($of.$field.as_bytes()));
        )*
    }};
}

pub(super) use numbers;

/// An object of one's own fields.
pub(super) type Object = Map<String, Value>;

/// The lines `name: value` that people get, as an object; numbers and booleans
/// as such. Names that occur several times become an array.
pub(super) fn of_lines(text: &str) -> Value {
    let mut object = Object::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        let value = match (value.parse::<u64>(), value.parse::<bool>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(truth)) => truth.into(),
            _ => value.into(),
        };
        match object.get_mut(name) {
            None => drop(object.insert(name.to_owned(), value)),
            Some(Value::Array(several)) => several.push(value),
            Some(one) => *one = vec![one.take(), value].into(),
        }
    }
    object.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_of_any_length() {
        assert_eq!(number(&[]), json!(0));
        assert_eq!(number(&[0x34, 0x12]), json!(0x1234));
        let most = number(&[0xFF; 16]).to_string();
        assert_eq!(most, u128::MAX.to_string());
    }

    #[test]
    fn lines_become_fields() {
        assert_eq!(
            of_lines("nsq: 64\nwce: true\nnsid: 1\nnsid: 2\nnsid: 3\nstate: Optimized\n"),
            json!({"nsq": 64, "wce": true, "nsid": [1, 2, 3], "state": "Optimized"})
        );
    }
}
