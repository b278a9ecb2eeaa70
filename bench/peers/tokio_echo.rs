// cargo build --release --offline --config bench/peers/debian.toml --manifest-path bench/peers/Cargo.toml --target-dir build/bench/cargo --bin tokio_echo
//
// tokio as its echo example has it, one task a connection. One worker is the current_thread
// runtime, more are the multi-threaded one with as many.
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

mod peer;

async fn echo(mut stream: TcpStream) {
    let mut buffer = Vec::with_capacity(peer::BUFFER_BYTES); // an idle one is never touched
    loop {
        buffer.clear();
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if stream.write_all(&buffer).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn serve(listener: std::net::TcpListener) {
    let listener = TcpListener::from_std(listener).expect("listener");
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    }
}

fn main() {
    let chosen = peer::parse();
    let listener = peer::listen_on(chosen.port);
    let port = listener.local_addr().expect("local_addr").port();
    let mut builder = if chosen.workers == 1 {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    if chosen.workers > 1 {
        builder.worker_threads(chosen.workers);
    }
    let runtime = builder.enable_io().build().expect("runtime");
    peer::say_listening(port);
    if chosen.workers > 1 {
        // not on the main thread, which is none of the workers
        runtime.block_on(async move { tokio::spawn(serve(listener)).await.expect("serve") });
    } else {
        runtime.block_on(serve(listener));
    }
}
