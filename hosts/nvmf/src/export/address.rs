//! Where the server listens.
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// The port that NBD has with IANA.
const PORT: u16 = 10809;

/// `unix:/path` or `tcp:ADDR[:PORT]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A path in the file system.
    Unix(PathBuf),
    /// A numeric address.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let tcp = text.strip_prefix("tcp:").and_then(|text| {
            let bare = text
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'));
            let ip = || bare.unwrap_or(text).parse::<IpAddr>().ok();
            let address = text.parse::<SocketAddr>().ok();
            address.or_else(|| ip().map(|ip| SocketAddr::new(ip, PORT)))
        });
        tcp.map(Self::Tcp).ok_or_else(|| {
            "write unix:/path, or tcp: and a numeric address, such as tcp:127.0.0.1:10809 or tcp:[::1]"
                .to_owned()
        })
    }
}

/// The URI that clients use, of the default export.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self {
            Self::Tcp(address) => return write!(f, "nbd://{address}/"),
            Self::Unix(path) => path,
        };
        f.write_str("nbd+unix:///?socket=")?;
        for byte in path.as_os_str().as_encoded_bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    f.write_char(char::from(*byte))?;
                }
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_uris() {
        for (text, uri) in [
            ("unix:/run/disk.sock", "nbd+unix:///?socket=/run/disk.sock"),
            ("unix:a b&c/%ü", "nbd+unix:///?socket=a%20b%26c/%25%C3%BC"),
            ("tcp:127.0.0.1", "nbd://127.0.0.1:10809/"),
            ("tcp:192.0.2.7:1", "nbd://192.0.2.7:1/"),
            ("tcp:[::1]", "nbd://[::1]:10809/"),
            ("tcp:::1", "nbd://[::1]:10809/"),
            ("tcp:[::]:7", "nbd://[::]:7/"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), uri);
        }
    }

    #[test]
    fn what_is_no_address() {
        for text in [
            "",
            "/run/disk.sock",
            "unix:",
            "tcp:",
            "tcp:localhost:1",
            "tcp:1.2.3.4:x",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
