// cargo build --release --offline --config bench/peers/debian.toml --manifest-path bench/peers/Cargo.toml --target-dir build/bench/cargo --bin mio_echo
//
// mio with the loop of its documentation: one poll a worker, a connection registered for reading,
// read until it would block, the reply tried at once; only a rest is kept and waits for writing.
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};

mod peer;

const LISTENER: Token = Token(usize::MAX);

struct Connection {
    stream: TcpStream,
    rest: Vec<u8>,
    rest_sent: usize,
}

/// False when the connection is over.
fn flush(connection: &mut Connection) -> bool {
    while connection.rest_sent < connection.rest.len() {
        match connection.stream.write(&connection.rest[connection.rest_sent..]) {
            Ok(sent) => connection.rest_sent += sent,
            Err(failed) if failed.kind() == ErrorKind::WouldBlock => return true,
            Err(failed) if failed.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    connection.rest.clear();
    connection.rest_sent = 0;
    true
}

fn echo(connection: &mut Connection, buffer: &mut [u8]) -> bool {
    while connection.rest.is_empty() {
        let got = match connection.stream.read(buffer) {
            Ok(0) => return false,
            Ok(got) => got,
            Err(failed) if failed.kind() == ErrorKind::WouldBlock => return true,
            Err(failed) if failed.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return false,
        };
        let sent = match connection.stream.write(&buffer[..got]) {
            Ok(sent) => sent,
            Err(failed) if failed.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return false,
        };
        if sent < got {
            connection.rest.extend_from_slice(&buffer[sent..got]);
            if !flush(connection) {
                return false;
            }
        }
    }
    true
}

fn step(poll: &Poll, event: &Event, connection: &mut Connection, buffer: &mut [u8]) -> bool {
    let waited = !connection.rest.is_empty();
    if waited && event.is_writable() && !flush(connection) {
        return false;
    }
    // An edge that came while bytes were waiting was not read: read on after them in any case.
    if !echo(connection, buffer) {
        return false;
    }
    let waits = !connection.rest.is_empty();
    if waits != waited {
        let both = Interest::READABLE | Interest::WRITABLE;
        let interest = if waits { both } else { Interest::READABLE };
        return poll.registry().reregister(&mut connection.stream, event.token(), interest).is_ok();
    }
    true
}

fn accept_all(poll: &Poll, listener: &TcpListener, all: &mut Vec<Option<Connection>>,
              free: &mut Vec<usize>) {
    loop {
        let (mut stream, _) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(failed) if failed.kind() == ErrorKind::WouldBlock => return,
            Err(_) => continue,
        };
        let index = free.pop().unwrap_or_else(|| {
            all.push(None);
            all.len() - 1
        });
        poll.registry()
            .register(&mut stream, Token(index), Interest::READABLE)
            .expect("register");
        all[index] = Some(Connection { stream, rest: Vec::new(), rest_sent: 0 });
    }
}

fn run(listener: std::net::TcpListener) {
    let mut listener = TcpListener::from_std(listener);
    let mut poll = Poll::new().expect("poll");
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).expect("register");
    let mut events = Events::with_capacity(128);
    let mut all: Vec<Option<Connection>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut buffer = vec![0u8; peer::BUFFER_BYTES];
    loop {
        if let Err(failed) = poll.poll(&mut events, None) {
            assert!(failed.kind() == ErrorKind::Interrupted, "poll: {failed}");
        }
        for event in events.iter() {
            if event.token() == LISTENER {
                accept_all(&poll, &listener, &mut all, &mut free);
                continue;
            }
            let index = event.token().0;
            let Some(connection) = all[index].as_mut() else { continue };
            if !step(&poll, event, connection, &mut buffer) {
                all[index] = None; // closing leaves the epoll set with it
                free.push(index);
            }
        }
    }
}

fn main() {
    let mut chosen = peer::parse();
    let mut listeners = Vec::new();
    for _ in 0..chosen.workers {
        let listener = peer::listen_on(chosen.port);
        chosen.port = listener.local_addr().expect("local_addr").port();
        listeners.push(listener);
    }
    peer::say_listening(chosen.port);
    let first = listeners.remove(0);
    for listener in listeners {
        std::thread::spawn(move || run(listener));
    }
    run(first);
}
