//! How namespaces are written on the command line.
//!
//! ```text
//! RAM    SIZE[,bs=512|4096][,uuid=UUID]
//! null   SIZE[,bs=512|4096][,uuid=UUID]
//! file   PATH[,size=SIZE][,bs=512|4096][,ro][,uuid=UUID]
//!        [,direct=auto|on|off][,io=auto|uring|threads][,fixed=on|off][,iopoll=auto|on|off]
//! ```
//!
//! SIZE is a number of bytes, or one with a unit that is a power of 1024: `64M`,
//! `64MiB`, `1.5G`. A fraction is rounded down to 4 KiB. A comma in PATH is written
//! twice.
use std::fmt;
use std::path::PathBuf;

use uuid::Uuid;

/// A namespace as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Where the data is.
    pub kind: Kind,
    /// log2 of the block size in bytes, if it was given: 9 or 12.
    pub block_shift: Option<u8>,
    /// The UUID, if it was given.
    pub uuid: Option<Uuid>,
}

/// Where the data of a namespace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In memory.
    Ram {
        /// Capacity in bytes.
        bytes: u64,
    },
    /// Nowhere.
    Null {
        /// Capacity in bytes.
        bytes: u64,
    },
    /// In a file or a block device.
    File {
        /// Its name.
        path: PathBuf,
        /// Bytes to give to a file that does not exist.
        size: Option<u64>,
        /// Refuse to change it.
        read_only: bool,
        /// Whether the page cache is bypassed.
        direct: Choice,
        /// Who makes the system calls.
        io: Io,
        /// Whether memory for direct I/O is registered with the io_uring, as far as the system permits.
        fixed: bool,
        /// Whether completions are polled for.
        iopoll: Choice,
    },
}

/// Whether something is done that may be impossible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Where it is possible.
    #[default]
    Auto,
    /// Yes, or the file is not served.
    On,
    /// No.
    Off,
}

/// Who makes the system calls that may block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// An io_uring where there is one, threads otherwise.
    #[default]
    Auto,
    /// An io_uring, or the file is not served.
    Uring,
    /// Threads.
    Threads,
}

/// Why an argument says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A size that cannot be read.
    #[error("{option} `{text}`: {reason}; write bytes, or a unit as in 512K, 64M, 1.5G, 2T")]
    Size {
        /// `size`, or the option's name.
        option: &'static str,
        /// What was written.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A size that is not a whole number of blocks.
    #[error("size: {bytes} bytes are not a multiple of the block size {block}")]
    Fraction {
        /// The size in bytes.
        bytes: u64,
        /// The block size in bytes.
        block: u32,
    },
    /// Another block size.
    #[error("bs={0}: a block has 512 or 4096 bytes")]
    BlockSize(String),
    /// Not a UUID.
    #[error("uuid={0}: not a UUID such as 123e4567-e89b-42d3-a456-426614174000")]
    Uuid(String),
    /// All zeroes or all ones, which stand for "none".
    #[error("uuid={0}: reserved; choose another")]
    ReservedUuid(Uuid),
    /// An option nobody knows, here.
    #[error("`{option}`: no such option; there are {known}")]
    Unknown {
        /// What was written.
        option: String,
        /// What can be.
        known: &'static str,
    },
    /// One of several words, and it is none of them.
    #[error("{option}{text}: write {known}")]
    Word {
        /// The option's name.
        option: &'static str,
        /// What was written.
        text: String,
        /// What can be.
        known: &'static str,
    },
    /// An option that was given before.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    /// No path.
    #[error("the path is missing")]
    NoPath,
}

/// Block size when none is given, log2.
pub(super) const DEFAULT_SHIFT: u8 = 9;

impl Spec {
    /// RAM with blocks of 512 bytes; `bytes` is a multiple of that.
    #[must_use]
    pub fn ram(bytes: u64) -> Self {
        Self {
            kind: Kind::Ram { bytes },
            block_shift: None,
            uuid: None,
        }
    }

    /// Reads `SIZE[,bs=][,uuid=]`.
    ///
    /// # Errors
    /// [`SpecError`] names the option.
    pub fn parse_ram(text: &str) -> Result<Self, SpecError> {
        let (size, options) = Options::split(text, "bs=, uuid=", &["bs", "uuid"])?;
        let bytes = options.bytes(&size)?;
        Ok(options.into_spec(Kind::Ram { bytes }))
    }

    /// Reads `SIZE[,bs=][,uuid=]`.
    ///
    /// # Errors
    /// [`SpecError`] names the option.
    pub fn parse_null(text: &str) -> Result<Self, SpecError> {
        let (size, options) = Options::split(text, "bs=, uuid=", &["bs", "uuid"])?;
        let bytes = options.bytes(&size)?;
        Ok(options.into_spec(Kind::Null { bytes }))
    }

    /// Reads `PATH[,size=][,bs=][,ro][,uuid=][,direct=][,io=][,fixed=][,iopoll=]`.
    ///
    /// # Errors
    /// [`SpecError`] names the option.
    pub fn parse_file(text: &str) -> Result<Self, SpecError> {
        let known = "size=, bs=, ro, uuid=, direct=, io=, fixed=, iopoll=";
        let allowed = [
            "size", "bs", "ro", "uuid", "direct", "io", "fixed", "iopoll",
        ];
        let (path, options) = Options::split(text, known, &allowed)?;
        if path.is_empty() {
            return Err(SpecError::NoPath);
        }
        if let Some(bytes) = options.size {
            options.whole(bytes)?;
        }
        let kind = Kind::File {
            path: path.into(),
            size: options.size,
            read_only: options.read_only,
            direct: options.direct,
            io: options.io,
            fixed: !options.not_fixed,
            iopoll: options.iopoll,
        };
        Ok(options.into_spec(kind))
    }
}

impl fmt::Display for Spec {
    /// Names it for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Ram { bytes } => write!(f, "{} of RAM", Size(*bytes)),
            Kind::Null { bytes } => write!(f, "{} of nothing", Size(*bytes)),
            Kind::File { path, .. } => write!(f, "{}", path.display()),
        }
    }
}

/// Reads a size in bytes: `512`, `64M`, `64MiB`, `1.5G`.
///
/// # Errors
/// [`SpecError::Size`].
pub fn parse_size(text: &str) -> Result<u64, SpecError> {
    size("size", text)
}

/// A number of bytes, shown with the largest unit that leaves it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(
    /// Bytes.
    pub u64,
);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = (1..=5)
            .rev()
            .find(|power| self.0 != 0 && self.0.is_multiple_of(1 << (10 * power)));
        match unit {
            Some(power) => {
                let name = ["", "Ki", "Mi", "Gi", "Ti", "Pi"][power];
                write!(f, "{} {name}B", self.0 >> (10 * power))
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

#[derive(Default)]
struct Options {
    size: Option<u64>,
    block_shift: Option<u8>,
    uuid: Option<Uuid>,
    read_only: bool,
    direct: Choice,
    io: Io,
    not_fixed: bool,
    iopoll: Choice,
}

impl Options {
    /// The first field, and the options after it.
    fn split(
        text: &str,
        known: &'static str,
        allowed: &[&'static str],
    ) -> Result<(String, Self), SpecError> {
        let mut fields = fields(text).into_iter();
        let first = fields.next().unwrap_or_default();
        let mut options = Self::default();
        let mut seen = Vec::new();
        for field in fields {
            let (name, value) = match field.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (&*field, None),
            };
            let name = allowed.iter().copied().find(|&allowed| allowed == name);
            match (name, value) {
                (Some("size"), Some(value)) => options.size = Some(size("size=", value)?),
                (Some("bs"), Some(value)) => options.block_shift = Some(block_shift(value)?),
                (Some("uuid"), Some(value)) => options.uuid = Some(parse_uuid(value)?),
                (Some("ro"), None) => options.read_only = true,
                (Some("direct"), Some(value)) => options.direct = choice("direct=", value)?,
                (Some("io"), Some(value)) => options.io = io(value)?,
                (Some("fixed"), Some(value)) => options.not_fixed = !switch("fixed=", value)?,
                (Some("iopoll"), Some(value)) => options.iopoll = choice("iopoll=", value)?,
                _ => {
                    return Err(SpecError::Unknown {
                        option: field,
                        known,
                    });
                }
            }
            let name = name.unwrap_or_default();
            if seen.contains(&name) {
                return Err(SpecError::Twice(name));
            }
            seen.push(name);
        }
        Ok((first, options))
    }

    fn bytes(&self, text: &str) -> Result<u64, SpecError> {
        let bytes = parse_size(text)?;
        self.whole(bytes)?;
        Ok(bytes)
    }

    fn whole(&self, bytes: u64) -> Result<(), SpecError> {
        let block = 1 << self.block_shift.unwrap_or(DEFAULT_SHIFT);
        if bytes.is_multiple_of(u64::from(block)) {
            Ok(())
        } else {
            Err(SpecError::Fraction { bytes, block })
        }
    }

    fn into_spec(self, kind: Kind) -> Spec {
        Spec {
            kind,
            block_shift: self.block_shift,
            uuid: self.uuid,
        }
    }
}

/// Fields between commas; two commas are one that belongs to the field.
fn fields(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' && characters.next_if_eq(&',').is_none() {
            fields.push(String::new());
        } else if let Some(field) = fields.last_mut() {
            field.push(character);
        }
    }
    fields
}

fn block_shift(text: &str) -> Result<u8, SpecError> {
    match size("bs=", text) {
        Ok(512) => Ok(9),
        Ok(4096) => Ok(12),
        _ => Err(SpecError::BlockSize(text.to_owned())),
    }
}

fn choice(option: &'static str, text: &str) -> Result<Choice, SpecError> {
    Ok(match text {
        "auto" => Choice::Auto,
        "on" => Choice::On,
        "off" => Choice::Off,
        _ => return Err(word(option, text, "auto, on or off")),
    })
}

fn switch(option: &'static str, text: &str) -> Result<bool, SpecError> {
    Ok(match text {
        "on" => true,
        "off" => false,
        _ => return Err(word(option, text, "on or off")),
    })
}

fn io(text: &str) -> Result<Io, SpecError> {
    Ok(match text {
        "auto" => Io::Auto,
        "uring" => Io::Uring,
        "threads" => Io::Threads,
        _ => return Err(word("io=", text, "auto, uring or threads")),
    })
}

fn word(option: &'static str, text: &str, known: &'static str) -> SpecError {
    SpecError::Word {
        option,
        text: text.to_owned(),
        known,
    }
}

fn parse_uuid(text: &str) -> Result<Uuid, SpecError> {
    let uuid = Uuid::try_parse(text).map_err(|_| SpecError::Uuid(text.to_owned()))?;
    if uuid.is_nil() || uuid.is_max() {
        return Err(SpecError::ReservedUuid(uuid));
    }
    Ok(uuid)
}

fn size(option: &'static str, text: &str) -> Result<u64, SpecError> {
    let error = |reason| SpecError::Size {
        option,
        text: text.to_owned(),
        reason,
    };
    let too_large = "more than can be addressed";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let power = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 1,
        "M" | "MIB" => 2,
        "G" | "GIB" => 3,
        "T" | "TIB" => 4,
        "P" | "PIB" => 5,
        "KB" | "MB" | "GB" | "TB" | "PB" => {
            return Err(error("is that a power of 1000 or of 1024?"));
        }
        _ => return Err(error("unknown unit")),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((_, "")) => return Err(error("not a number")),
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (digits, None),
    };
    let unit = 1u128 << (10 * power);
    let mut bytes = number(whole)
        .ok_or(error("not a number"))?
        .checked_mul(unit)
        .ok_or(error(too_large))?;
    if let Some(fraction) = fraction {
        if power == 0 {
            return Err(error("a part of a byte"));
        }
        let scale = 10u128
            .checked_pow(u32::try_from(fraction.len()).unwrap_or(u32::MAX))
            .filter(|_| fraction.len() <= 18)
            .ok_or(error("too many digits"))?;
        let part = number(fraction).ok_or(error("not a number"))?;
        bytes += part * unit / scale;
        bytes -= bytes % 4096;
    }
    match u64::try_from(bytes) {
        Ok(0) => Err(error("nothing")),
        Ok(bytes) if i64::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err(error(too_large)),
    }
}

/// Decimal digits and nothing else; at most 25 of them.
fn number(digits: &str) -> Option<u128> {
    let decimal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (decimal && digits.len() <= 25).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("512", 512),
            ("512B", 512),
            ("4k", 4096),
            ("64M", 64 * MIB),
            ("64MiB", 64 * MIB),
            ("1G", GIB),
            ("1.5G", 3 * GIB / 2),
            ("1.50gib", 3 * GIB / 2),
            ("0.5T", 512 * GIB),
            ("0.3G", 322_121_728),
            ("7P", 7 << 50),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_why() {
        for (text, reason) in [
            ("", "not a number"),
            ("M", "not a number"),
            ("-1", "not a number"),
            ("+1", "not a number"),
            ("1 G", "not a number"),
            ("1.G", "not a number"),
            (".5G", "not a number"),
            ("1.2.3G", "not a number"),
            ("1,5G", "not a number"),
            ("0", "nothing"),
            ("0.001K", "nothing"),
            ("10MB", "1000 or of 1024"),
            ("10Q", "unknown unit"),
            ("1e6", "not a number"),
            ("1.5", "part of a byte"),
            ("1.0000000000000000000G", "too many digits"),
            ("8192P", "more than can be addressed"),
            ("99999999999999999999999999", "not a number"),
            ("9223372036854775808", "more than can be addressed"),
        ] {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.starts_with("size"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_whole() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (3 * KIB / 2, "1536 B"),
            (256 * MIB, "256 MiB"),
            (3 * GIB / 2, "1536 MiB"),
            (1 << 50, "1 PiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn ram_and_null() {
        assert_eq!(Spec::parse_ram("256M"), Ok(Spec::ram(256 * MIB)));
        assert_eq!(
            Spec::parse_null("1T,bs=4k"),
            Ok(Spec {
                kind: Kind::Null { bytes: 1 << 40 },
                block_shift: Some(12),
                uuid: None,
            })
        );
        assert_eq!(Spec::ram(256 * MIB).to_string(), "256 MiB of RAM");
    }

    #[test]
    fn files() {
        let uuid = "6f1d3a52-0d8e-4a4b-9d0c-5a8fb6b4e1aa";
        let text = format!(
            "/srv/a,,b,size=1.5G,bs=4096,ro,uuid={uuid},io=threads,direct=off,fixed=off,iopoll=on"
        );
        assert_eq!(
            Spec::parse_file(&text),
            Ok(Spec {
                kind: Kind::File {
                    path: "/srv/a,b".into(),
                    size: Some(3 * GIB / 2),
                    read_only: true,
                    direct: Choice::Off,
                    io: Io::Threads,
                    fixed: false,
                    iopoll: Choice::On,
                },
                block_shift: Some(12),
                uuid: Some(Uuid::parse_str(uuid).unwrap()),
            })
        );
        assert_eq!(
            Spec::parse_file("a=b").map(|spec| spec.kind),
            Ok(Kind::File {
                path: "a=b".into(),
                size: None,
                read_only: false,
                direct: Choice::Auto,
                io: Io::Auto,
                fixed: true,
                iopoll: Choice::Auto,
            })
        );
    }

    #[test]
    fn errors_name_the_option() {
        type Parse = fn(&str) -> Result<Spec, SpecError>;
        let cases: [(Parse, &str, &str); 19] = [
            (
                Spec::parse_ram,
                "1000",
                "size: 1000 bytes are not a multiple of the block size 512",
            ),
            (
                Spec::parse_ram,
                "512,bs=4096",
                "not a multiple of the block size 4096",
            ),
            (
                Spec::parse_ram,
                "1M,ro",
                "`ro`: no such option; there are bs=, uuid=",
            ),
            (Spec::parse_ram, "1M,", "``: no such option"),
            (Spec::parse_null, "1M,size=2M", "`size=2M`: no such option"),
            (Spec::parse_file, "", "the path is missing"),
            (Spec::parse_file, "f,size=x", "size= `x`: unknown unit"),
            (Spec::parse_file, "f,size=700", "not a multiple"),
            (
                Spec::parse_file,
                "f,bs=1024",
                "bs=1024: a block has 512 or 4096 bytes",
            ),
            (Spec::parse_file, "f,bs", "`bs`: no such option"),
            (Spec::parse_file, "f,direct", "`direct`: no such option"),
            (
                Spec::parse_file,
                "f,direct=yes",
                "direct=yes: write auto, on or off",
            ),
            (
                Spec::parse_file,
                "f,io=aio",
                "io=aio: write auto, uring or threads",
            ),
            (
                Spec::parse_file,
                "f,fixed=auto",
                "fixed=auto: write on or off",
            ),
            (
                Spec::parse_file,
                "f,iopoll=1",
                "iopoll=1: write auto, on or off",
            ),
            (Spec::parse_file, "f,ro=1", "`ro=1`: no such option"),
            (Spec::parse_file, "f,ro,ro", "`ro` is given twice"),
            (Spec::parse_file, "f,uuid=12", "uuid=12: not a UUID"),
            (
                Spec::parse_file,
                "f,uuid=00000000-0000-0000-0000-000000000000",
                "reserved",
            ),
        ];
        for (parse, text, part) in cases {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
