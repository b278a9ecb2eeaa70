// What the echo servers in Rust share: the command line of floor_epoll and its listener.
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

/// One byte more than 16 KiB: a message of exactly 16 KiB is then a short read, as in the floor.
pub const BUFFER_BYTES: usize = 16 * 1024 + 1;

pub struct Options {
    pub port: u16,
    pub workers: usize,
}

fn refuse(flag: &str) -> ! {
    eprintln!("peer: unknown option or value: {flag}; --port P --workers N");
    std::process::exit(2);
}

pub fn parse() -> Options {
    let mut chosen = Options { port: 0, workers: 1 };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().and_then(|text| text.parse::<u16>().ok());
        match (flag.as_str(), value) {
            ("--port", Some(port)) => chosen.port = port,
            ("--workers", Some(workers)) => chosen.workers = usize::from(workers.max(1)),
            _ => refuse(&flag),
        }
    }
    chosen
}

/// A listener of a worker's own. What it is set to (no delay) its connections inherit.
pub fn listen_on(port: u16) -> TcpListener {
    let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).expect("socket");
    listener.set_reuse_address(true).expect("SO_REUSEADDR");
    listener.set_reuse_port(true).expect("SO_REUSEPORT");
    listener.set_nodelay(true).expect("TCP_NODELAY");
    listener.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into()).expect("bind");
    listener.listen(4096).expect("listen");
    listener.into()
}

pub fn say_listening(port: u16) {
    use std::io::Write;
    println!("listening {port}");
    std::io::stdout().flush().expect("stdout");
}
