// A TLS policy on BearSSL, which allocates nothing either: what stands between netio and any other
// library would look like this. TLS 1.0 to 1.2 are BearSSL's; here it is 1.2 alone.
#ifndef NETIO_EXAMPLES_BEARSSL_TLS_HPP
#define NETIO_EXAMPLES_BEARSSL_TLS_HPP

#include "netio.hpp"

#include <bearssl.h>

#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace example {

/// A certificate chain and its key, ECDSA or RSA, from two PEM files.
class tls_identity {
public:
    /// False after one line to standard error.
    bool load(const char* program, const char* chain_path, const char* key_path) noexcept {
        static std::byte file[file_bytes_max];
        loading_chain_ = true;
        const bool chain = read_pem(chain_path, file) && !overflowed_ && certificates_count_ != 0;
        loading_chain_ = false;
        br_skey_decoder_init(&key_);
        const bool key = chain && read_pem(key_path, file) &&
                         br_skey_decoder_last_error(&key_) == 0;
        netio::wipe(file, sizeof(file));
        if (!chain || !key) {
            std::fprintf(stderr, "%s: %s: no %s that BearSSL can read\n", program,
                         chain ? key_path : chain_path, chain ? "private key" : "certificates");
        }
        return chain && key;
    }

    /// Makes `to` a server of this identity.
    void apply(br_ssl_server_context& to) const noexcept {
        if (br_skey_decoder_key_type(&key_) == BR_KEYTYPE_EC) {
            br_ssl_server_init_full_ec(&to, certificates_, certificates_count_, issuer_key_type(),
                                       br_skey_decoder_get_ec(&key_));
        } else {
            br_ssl_server_init_full_rsa(&to, certificates_, certificates_count_,
                                        br_skey_decoder_get_rsa(&key_));
        }
    }

private:
    static constexpr std::size_t file_bytes_max = 64 * 1024;
    static constexpr std::size_t certificates_max = 8;

    bool read_pem(const char* path, std::span<std::byte> into) noexcept {
        const int file = ::open(path, O_RDONLY | O_CLOEXEC);  // fopen would allocate
        if (file < 0) {
            return false;
        }
        const ::ssize_t count = ::read(file, into.data(), into.size());
        ::close(file);
        return count > 0 && static_cast<std::size_t>(count) < into.size() &&
               decode({into.data(), static_cast<std::size_t>(count)});
    }

    bool decode(netio::bytes text) noexcept {
        static br_pem_decoder_context pem;
        br_pem_decoder_init(&pem);
        bool good = true;
        while (!text.empty() && good) {
            text = text.subspan(br_pem_decoder_push(&pem, text.data(), text.size()));
            switch (br_pem_decoder_event(&pem)) {
            case BR_PEM_BEGIN_OBJ:
                begin(pem, br_pem_decoder_name(&pem));
                break;
            case BR_PEM_END_OBJ:
                end();
                break;
            case BR_PEM_ERROR:
                good = false;
                break;
            default:
                break;
            }
        }
        netio::wipe(&pem, sizeof(pem));
        return good;
    }

    void begin(br_pem_decoder_context& pem, std::string_view name) noexcept {
        object_begin_ = chain_bytes_count_;
        if (loading_chain_ && name == "CERTIFICATE") {
            br_pem_decoder_setdest(&pem, take_certificate, this);
        } else if (!loading_chain_ && name.ends_with("PRIVATE KEY")) {
            br_pem_decoder_setdest(&pem, take_key, this);
        } else {
            br_pem_decoder_setdest(&pem, nullptr, nullptr);
        }
    }
    void end() noexcept {
        if (chain_bytes_count_ == object_begin_) {
            return;
        }
        if (certificates_count_ == certificates_max) {
            overflowed_ = true;
            return;
        }
        certificates_[certificates_count_++] = {chain_bytes_ + object_begin_,
                                                chain_bytes_count_ - object_begin_};
    }
    static void take_certificate(void* of, const void* piece, std::size_t count) noexcept {
        auto& mine = *static_cast<tls_identity*>(of);
        if (count > sizeof(mine.chain_bytes_) - mine.chain_bytes_count_) {
            mine.overflowed_ = true;
            return;
        }
        std::memcpy(mine.chain_bytes_ + mine.chain_bytes_count_, piece, count);
        mine.chain_bytes_count_ += count;
    }
    static void take_key(void* of, const void* piece, std::size_t count) noexcept {
        br_skey_decoder_push(&static_cast<tls_identity*>(of)->key_, piece, count);
    }

    /// Static ECDH suites depend on it.
    unsigned issuer_key_type() const noexcept {
        br_x509_decoder_context decoder;
        br_x509_decoder_init(&decoder, nullptr, nullptr);
        const auto& [certificate, byte_count] = certificates_[0];
        br_x509_decoder_push(&decoder, certificate, byte_count);
        return static_cast<unsigned>(br_x509_decoder_get_signer_key_type(&decoder));
    }

    br_skey_decoder_context key_;
    br_x509_certificate certificates_[certificates_max];
    std::size_t certificates_count_ = 0;
    unsigned char chain_bytes_[32 * 1024];
    std::size_t chain_bytes_count_ = 0;
    std::size_t object_begin_ = 0;
    bool loading_chain_ = false;
    bool overflowed_ = false;
};

/// `Sessions` of them, some 25 KiB each. For a server with one worker.
template <std::uint32_t Sessions>
class bearssl_tls {
public:
    /// Before the server runs. Both must outlive it; of `protocols` the client gets the first that
    /// it offers, too.
    void serve(const tls_identity& identity, std::span<const char*> protocols) noexcept {
        identity_ = &identity;
        protocols_ = protocols;
        for (std::uint32_t at = Sessions; at != 0; --at) {
            give(at);
        }
    }

    // ---- what was negotiated, of an open session

    /// 0x0303 is TLS 1.2.
    unsigned version(std::uint32_t session) const noexcept {
        return br_ssl_engine_get_version(&of(session).server.eng);
    }
    /// The host that the client asked for; empty if it named none.
    std::string_view server_name(std::uint32_t session) const noexcept {
        return br_ssl_engine_get_server_name(&of(session).server.eng);
    }
    /// The protocol that was agreed on; empty if the client offered none of ours.
    std::string_view protocol(std::uint32_t session) noexcept {
        const char* const name = br_ssl_engine_get_selected_protocol(&of(session).server.eng);
        return name == nullptr ? std::string_view() : std::string_view(name);
    }

    // ---- what netio calls

    std::uint32_t open_session(const netio::connection&) noexcept {
        const std::uint32_t number = free_;
        if (number == 0) {
            return 0;
        }
        entry& s = of(number);
        free_ = s.next_free;
        s.next_free = 0;
        br_ssl_engine_context& engine = s.server.eng;
        identity_->apply(s.server);
        br_ssl_engine_set_versions(&engine, BR_TLS12, BR_TLS12);
        br_ssl_engine_set_all_flags(&engine, BR_OPT_NO_RENEGOTIATION);
        br_ssl_engine_set_protocol_names(&engine, protocols_.data(), protocols_.size());
        br_ssl_engine_set_buffers_bidi(&engine, s.in, sizeof(s.in), s.out, sizeof(s.out));
        br_ssl_server_reset(&s.server);  // if it fails the session is `failed` at once
        return number;
    }
    void close_session(std::uint32_t number) noexcept {
        netio::wipe(&of(number), sizeof(entry));
        give(number);
    }
    netio::mutable_bytes receive_space(std::uint32_t number) noexcept {
        entry& s = of(number);
        std::size_t count = 0;
        unsigned char* const at =
            s.no_more ? nullptr : br_ssl_engine_recvrec_buf(&s.server.eng, &count);
        return {reinterpret_cast<std::byte*>(at), count};
    }
    void received(std::uint32_t number, std::size_t count) noexcept {
        br_ssl_engine_recvrec_ack(&of(number).server.eng, count);
    }
    void end_of_input(std::uint32_t number) noexcept { of(number).no_more = true; }
    netio::bytes plaintext(std::uint32_t number) noexcept {
        std::size_t count = 0;
        const unsigned char* const at = br_ssl_engine_recvapp_buf(&of(number).server.eng, &count);
        return {reinterpret_cast<const std::byte*>(at), count};
    }
    void consumed(std::uint32_t number, std::size_t count) noexcept {
        br_ssl_engine_recvapp_ack(&of(number).server.eng, count);
    }
    std::size_t write(std::uint32_t number, netio::bytes plain) noexcept {
        br_ssl_engine_context& engine = of(number).server.eng;
        std::size_t count = 0;
        unsigned char* const at = br_ssl_engine_sendapp_buf(&engine, &count);
        count = at == nullptr ? 0 : count < plain.size() ? count : plain.size();
        if (count != 0) {
            std::memcpy(at, plain.data(), count);
            br_ssl_engine_sendapp_ack(&engine, count);
        }
        return count;
    }
    netio::bytes to_send(std::uint32_t number) noexcept {
        br_ssl_engine_context& engine = of(number).server.eng;
        br_ssl_engine_flush(&engine, 0);
        std::size_t count = 0;
        const unsigned char* const at = br_ssl_engine_sendrec_buf(&engine, &count);
        return {reinterpret_cast<const std::byte*>(at), count};
    }
    void sent(std::uint32_t number, std::size_t count) noexcept {
        br_ssl_engine_sendrec_ack(&of(number).server.eng, count);
    }
    void end(std::uint32_t number) noexcept { br_ssl_engine_close(&of(number).server.eng); }
    netio::tls_status status(std::uint32_t number) noexcept {
        entry& s = of(number);
        const unsigned now = br_ssl_engine_current_state(&s.server.eng);
        if ((now & BR_SSL_CLOSED) != 0) {
            // A close_notify in mid-handshake is in order to BearSSL; but no session was.
            return s.is_open && br_ssl_engine_last_error(&s.server.eng) == BR_ERR_OK
                       ? netio::tls_status::closed
                       : netio::tls_status::failed;
        }
        // With something to send it may be the answer to the peer's close_notify: then `closed`
        // comes after that.
        if (s.no_more && (now & (BR_SSL_SENDREC | BR_SSL_RECVAPP)) == 0) {
            return netio::tls_status::failed;
        }
        s.is_open = s.is_open || (now & (BR_SSL_SENDAPP | BR_SSL_RECVAPP)) != 0;
        return s.is_open ? netio::tls_status::open : netio::tls_status::handshake;
    }
    /// BearSSL's error: 256 and an alert's number if the peer sent that, 512 if it was sent to it.
    std::uint16_t code(std::uint32_t number) noexcept {
        const int error = br_ssl_engine_last_error(&of(number).server.eng);
        return static_cast<std::uint16_t>(error == BR_ERR_OK ? BR_ERR_IO : error);
    }

private:
    struct entry {
        br_ssl_server_context server;
        std::uint32_t next_free;
        bool is_open;
        bool no_more;
        unsigned char in[BR_SSL_BUFSIZE_INPUT];
        unsigned char out[4096 + 85];  // shorter records than 16 KiB are the sender's right
    };

    entry& of(std::uint32_t number) noexcept { return sessions_[number - 1]; }
    const entry& of(std::uint32_t number) const noexcept { return sessions_[number - 1]; }
    void give(std::uint32_t number) noexcept {
        of(number).next_free = free_;
        free_ = number;
    }

    entry sessions_[Sessions];
    std::uint32_t free_ = 0;
    const tls_identity* identity_ = nullptr;
    std::span<const char*> protocols_{};
};

}  // namespace example

#endif
