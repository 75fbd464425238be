//! As much JSON as the commands print.
use std::fmt::Write;

/// A string, quoted.
pub(super) fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::string;

    #[test]
    fn what_would_end_a_string_is_escaped() {
        assert_eq!(string("a\"b\\c\n\u{7f}ä"), r#""a\"b\\c\u000a\u007fä""#);
    }
}
