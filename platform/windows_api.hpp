// floor 4 · windows_api.hpp · what netio needs of Windows, declared without the system's headers
#ifndef NETIO_WINDOWS_API_HPP
#define NETIO_WINDOWS_API_HPP

#include "src/base.hpp"

#if NETIO_HAS_IOCP

// The headers of the system would bring thousands of macros into every program, and whoever
// includes <windows.h> later would find it already included, in a cut-down form. So the functions
// are declared here, with the very types the headers use: both may be included, in either order.
struct sockaddr;
struct WSAData;
struct _OVERLAPPED;
struct _OVERLAPPED_ENTRY;
struct _WSABUF;
struct _WSAPROTOCOL_INFOW;
struct _SECURITY_ATTRIBUTES;
struct HINSTANCE__;
struct _MEMORY_BASIC_INFORMATION;
union _LARGE_INTEGER;

extern "C" {
#define NETIO_IMPORTED __declspec(dllimport)
using netio_overlapped_routine = void(__stdcall*)(unsigned long, unsigned long, _OVERLAPPED*,
                                                  unsigned long);

NETIO_IMPORTED int __stdcall WSAStartup(unsigned short, WSAData*);
NETIO_IMPORTED int __stdcall WSACleanup();
NETIO_IMPORTED int __stdcall WSAGetLastError();
NETIO_IMPORTED std::uintptr_t __stdcall WSASocketW(int, int, int, _WSAPROTOCOL_INFOW*,
                                                   unsigned int, unsigned long);
NETIO_IMPORTED int __stdcall WSAIoctl(std::uintptr_t, unsigned long, void*, unsigned long, void*,
                                      unsigned long, unsigned long*, _OVERLAPPED*,
                                      netio_overlapped_routine);
NETIO_IMPORTED int __stdcall WSARecv(std::uintptr_t, _WSABUF*, unsigned long, unsigned long*,
                                     unsigned long*, _OVERLAPPED*, netio_overlapped_routine);
NETIO_IMPORTED int __stdcall WSASend(std::uintptr_t, _WSABUF*, unsigned long, unsigned long*,
                                     unsigned long, _OVERLAPPED*, netio_overlapped_routine);
NETIO_IMPORTED int __stdcall WSARecvFrom(std::uintptr_t, _WSABUF*, unsigned long, unsigned long*,
                                         unsigned long*, sockaddr*, int*, _OVERLAPPED*,
                                         netio_overlapped_routine);
NETIO_IMPORTED int __stdcall WSASendTo(std::uintptr_t, _WSABUF*, unsigned long, unsigned long*,
                                       unsigned long, const sockaddr*, int, _OVERLAPPED*,
                                       netio_overlapped_routine);
NETIO_IMPORTED int __stdcall bind(std::uintptr_t, const sockaddr*, int);
NETIO_IMPORTED int __stdcall listen(std::uintptr_t, int);
NETIO_IMPORTED int __stdcall connect(std::uintptr_t, const sockaddr*, int);
NETIO_IMPORTED int __stdcall shutdown(std::uintptr_t, int);
NETIO_IMPORTED int __stdcall closesocket(std::uintptr_t);
NETIO_IMPORTED int __stdcall ioctlsocket(std::uintptr_t, long, unsigned long*);
NETIO_IMPORTED int __stdcall setsockopt(std::uintptr_t, int, int, const char*, int);
NETIO_IMPORTED int __stdcall getsockopt(std::uintptr_t, int, int, char*, int*);
NETIO_IMPORTED int __stdcall getsockname(std::uintptr_t, sockaddr*, int*);
NETIO_IMPORTED int __stdcall recv(std::uintptr_t, char*, int, int);
NETIO_IMPORTED int __stdcall recvfrom(std::uintptr_t, char*, int, int, sockaddr*, int*);
NETIO_IMPORTED int __stdcall sendto(std::uintptr_t, const char*, int, int, const sockaddr*, int);

#if defined(_WIN64)
using netio_ulong_pointer = unsigned long long;
using netio_procedure = long long(__stdcall*)();
#else
using netio_ulong_pointer = unsigned long;
using netio_procedure = int(__stdcall*)();
#endif
NETIO_IMPORTED unsigned long __stdcall GetLastError();
NETIO_IMPORTED int __stdcall CloseHandle(void*);
NETIO_IMPORTED void* __stdcall CreateIoCompletionPort(void*, void*, netio_ulong_pointer,
                                                      unsigned long);
NETIO_IMPORTED int __stdcall GetQueuedCompletionStatusEx(void*, _OVERLAPPED_ENTRY*, unsigned long,
                                                         unsigned long*, unsigned long, int);
NETIO_IMPORTED int __stdcall PostQueuedCompletionStatus(void*, unsigned long, netio_ulong_pointer,
                                                        _OVERLAPPED*);
NETIO_IMPORTED int __stdcall SetFileCompletionNotificationModes(void*, unsigned char);
NETIO_IMPORTED int __stdcall CancelIoEx(void*, _OVERLAPPED*);
NETIO_IMPORTED int __stdcall QueryPerformanceCounter(_LARGE_INTEGER*);
NETIO_IMPORTED int __stdcall QueryPerformanceFrequency(_LARGE_INTEGER*);
NETIO_IMPORTED void __stdcall Sleep(unsigned long);
NETIO_IMPORTED void* __stdcall CreateNamedPipeW(const wchar_t*, unsigned long, unsigned long,
                                                unsigned long, unsigned long, unsigned long,
                                                unsigned long, _SECURITY_ATTRIBUTES*);
NETIO_IMPORTED void* __stdcall CreateFileW(const wchar_t*, unsigned long, unsigned long,
                                           _SECURITY_ATTRIBUTES*, unsigned long, unsigned long,
                                           void*);
NETIO_IMPORTED int __stdcall ConnectNamedPipe(void*, _OVERLAPPED*);
NETIO_IMPORTED int __stdcall DisconnectNamedPipe(void*);
NETIO_IMPORTED int __stdcall PeekNamedPipe(void*, void*, unsigned long, unsigned long*,
                                           unsigned long*, unsigned long*);
NETIO_IMPORTED int __stdcall GetNamedPipeInfo(void*, unsigned long*, unsigned long*,
                                              unsigned long*, unsigned long*);
NETIO_IMPORTED int __stdcall GetNamedPipeClientProcessId(void*, unsigned long*);
NETIO_IMPORTED int __stdcall ReadFile(void*, void*, unsigned long, unsigned long*, _OVERLAPPED*);
NETIO_IMPORTED int __stdcall WriteFile(void*, const void*, unsigned long, unsigned long*,
                                       _OVERLAPPED*);
NETIO_IMPORTED int __stdcall MultiByteToWideChar(unsigned int, unsigned long, const char*, int,
                                                 wchar_t*, int);
NETIO_IMPORTED HINSTANCE__* __stdcall LoadLibraryExW(const wchar_t*, void*, unsigned long);
NETIO_IMPORTED netio_procedure __stdcall GetProcAddress(HINSTANCE__*, const char*);
NETIO_IMPORTED int __stdcall FreeLibrary(HINSTANCE__*);
NETIO_IMPORTED void* __stdcall LocalFree(void*);
NETIO_IMPORTED void* __stdcall CreateFileMappingW(void*, _SECURITY_ATTRIBUTES*, unsigned long,
                                                  unsigned long, unsigned long, const wchar_t*);
NETIO_IMPORTED void* __stdcall OpenFileMappingW(unsigned long, int, const wchar_t*);
NETIO_IMPORTED void* __stdcall MapViewOfFile(void*, unsigned long, unsigned long, unsigned long,
                                             netio_ulong_pointer);
NETIO_IMPORTED int __stdcall UnmapViewOfFile(const void*);
NETIO_IMPORTED netio_ulong_pointer __stdcall VirtualQuery(const void*, _MEMORY_BASIC_INFORMATION*,
                                                          netio_ulong_pointer);
NETIO_IMPORTED void* __stdcall CreateEventW(_SECURITY_ATTRIBUTES*, int, int, const wchar_t*);
NETIO_IMPORTED void* __stdcall OpenEventW(unsigned long, int, const wchar_t*);
NETIO_IMPORTED int __stdcall SetEvent(void*);
NETIO_IMPORTED unsigned long __stdcall WaitForSingleObject(void*, unsigned long);
NETIO_IMPORTED void* __stdcall OpenProcess(unsigned long, int, unsigned long);
NETIO_IMPORTED unsigned long __stdcall GetCurrentProcessId();
#undef NETIO_IMPORTED
}

NETIO_BEGIN

/// The system's structures and numbers under names that no macro of its headers has. A test
/// compares each of them with the headers.
namespace detail::windows {

using socket_type = std::uintptr_t;
inline constexpr socket_type no_socket = ~socket_type{0};

struct overlapped {
    netio_ulong_pointer status;  // an NTSTATUS once the operation has ended
    netio_ulong_pointer byte_count;
    std::uint32_t offset;
    std::uint32_t offset_high;
    void* signal;
};
struct completion {
    netio_ulong_pointer key;
    overlapped* operation;
    netio_ulong_pointer status;
    unsigned long byte_count;
};
struct slice {
    unsigned long byte_count;
    char* from;
};
struct address_ipv4 {
    std::uint16_t family;
    std::uint16_t port;
    std::uint8_t address[4];
    std::uint8_t zero[8];
};
struct address_ipv6 {
    std::uint16_t family;
    std::uint16_t port;
    std::uint32_t flow_info;
    std::uint8_t address[16];
    std::uint32_t scope_id;
};
struct address_unix {
    std::uint16_t family;
    char path[108];
};
struct linger_time {
    std::uint16_t on;
    std::uint16_t seconds;
};
struct security_attributes {
    unsigned long byte_count;
    void* descriptor;
    int inherited;
};
/// What a range of pages is.
struct memory_facts {
    void* base;
    void* allocation;
    unsigned long allocation_protection;
    netio_ulong_pointer byte_count;
    unsigned long state;
    unsigned long protection;
    unsigned long type;
};
/// The name of a file or pipe, as the system tells it: without the device.
struct file_name {
    unsigned long byte_count;
    wchar_t text[256];
};
struct guid {
    std::uint32_t first;
    std::uint16_t second, third;
    std::uint8_t rest[8];
};

inline constexpr guid accept_ex_guid{
    0xb5367df1, 0xcbac, 0x11cf, {0x95, 0xca, 0x00, 0x80, 0x5f, 0x48, 0xa1, 0x92}};
inline constexpr guid connect_ex_guid{
    0x25a207b9, 0xddf3, 0x4660, {0x8e, 0xe9, 0x76, 0xe5, 0x8c, 0x74, 0x06, 0x3e}};
inline constexpr guid accept_addresses_guid{
    0xb5367df2, 0xcbac, 0x11cf, {0x95, 0xca, 0x00, 0x80, 0x5f, 0x48, 0xa1, 0x92}};

using accept_ex = int(__stdcall*)(socket_type, socket_type, void*, unsigned long, unsigned long,
                                  unsigned long, unsigned long*, overlapped*);
using connect_ex = int(__stdcall*)(socket_type, const void*, int, void*, unsigned long,
                                   unsigned long*, overlapped*);
using information_of = int(__stdcall*)(void*, int, void*, unsigned long);
using descriptor_of = int(__stdcall*)(const char*, unsigned long, void**, unsigned long*);
using random_of = unsigned char(__stdcall*)(void*, unsigned long);
using accept_addresses = void(__stdcall*)(void*, unsigned long, unsigned long, unsigned long,
                                          void**, int*, void**, int*);

inline constexpr int family_unix = 1;
inline constexpr int family_ipv4 = 2;
inline constexpr int family_ipv6 = 23;
inline constexpr int type_stream = 1;
inline constexpr int type_datagram = 2;

inline constexpr int level_socket = 0xffff;
inline constexpr int option_listens = 0x0002;
inline constexpr int option_keepalive = 0x0008;
inline constexpr int option_linger = 0x0080;
inline constexpr int option_send_bytes = 0x1001;
inline constexpr int option_receive_bytes = 0x1002;
inline constexpr int option_type = 0x1008;
inline constexpr int option_exclusive = ~4;
inline constexpr int option_protocol_info = 0x2005;
inline constexpr int option_accepted_from = 0x700B;
inline constexpr int option_connected = 0x7010;
inline constexpr int level_tcp = 6;
inline constexpr int option_no_delay = 1;
inline constexpr int option_keepalive_idle = 3;
inline constexpr int option_fast_open = 15;
inline constexpr int option_keepalive_probes = 16;
inline constexpr int option_keepalive_interval = 17;
inline constexpr int level_ipv6 = 41;
inline constexpr int option_v6_only = 27;

inline constexpr unsigned long socket_overlapped = 0x01;
inline constexpr unsigned long socket_not_inherited = 0x80;
inline constexpr unsigned long get_extension = 0xC8000006;
inline constexpr long set_non_blocking = static_cast<long>(0x8004667E);
inline constexpr unsigned long flag_peek = 2;
inline constexpr int shut_sending = 1;
inline constexpr int backlog_max = 0x7fffffff;
inline constexpr std::uint16_t winsock_version = 0x0202;
inline constexpr std::size_t winsock_data_bytes = 408;
inline constexpr std::size_t protocol_info_bytes = 628;  // its first word: the flags below
inline constexpr std::uint32_t provides_file_handles = 0x20000;
inline constexpr unsigned char skip_port_on_success = 1;
inline constexpr unsigned char skip_event_on_handle = 2;

// Named pipes.
inline constexpr unsigned long pipe_open_mode = 0x40000003;  // both ways, overlapped
inline constexpr unsigned long pipe_first = 0x00080000;
inline constexpr unsigned long pipe_mode = 0x00000008;  // bytes, nobody from other machines
inline constexpr unsigned long pipe_instances_unlimited = 255;
inline constexpr unsigned long access_attributes = 0x80;
inline constexpr unsigned long open_existing = 3;
inline constexpr int class_file_name = 2;
inline constexpr unsigned long descriptor_revision = 1;
inline constexpr unsigned long search_system_only = 0x800;
inline constexpr unsigned int code_page_utf8 = 65001;
inline constexpr unsigned long refuse_invalid = 8;

// Shared memory, events, processes.
inline constexpr unsigned long page_read_write = 4;
inline constexpr unsigned long view_read_write = 6;
inline constexpr unsigned long pages_committed = 0x1000;
inline constexpr unsigned long pages_mapped = 0x40000;
inline constexpr unsigned long access_synchronize = 0x00100000;
inline constexpr unsigned long access_event = 0x00100002;    // wait for it, and set it
inline constexpr unsigned long wait_ended = 0;
inline constexpr unsigned long wait_timed_out = 258;

// Answers of functions.
inline constexpr int access_denied = 5;
inline constexpr int pipe_broken = 109;
inline constexpr int already_exists = 183;
inline constexpr int pipe_closing = 232;
inline constexpr int pipe_connected = 535;
inline constexpr int resources_empty = 1450;
inline constexpr int operation_pending = 997;
inline constexpr int parameter_wrong = 87;
inline constexpr int would_block = 10035;
inline constexpr int receive_peek = 2;  // MSG_PEEK
inline constexpr int message_too_long = 10040;
inline constexpr int family_not_supported = 10047;
inline constexpr int network_reset = 10052;
inline constexpr int connection_aborted = 10053;
inline constexpr int connection_reset = 10054;
inline constexpr int memory_empty = 10055;
inline constexpr int not_connected = 10057;
inline constexpr int handles_empty = 10024;
inline constexpr int destination_missing = 10039;
inline constexpr int operation_aborted = 995;

// Answers of operations: an NTSTATUS that says "not yet", "done, with a remark", and "gone".
inline constexpr std::uint32_t status_pending = 0x00000103;
inline constexpr std::uint32_t status_cut = 0x80000005;
inline constexpr std::uint32_t status_cancelled = 0xC0000120;

template <class To, class From>
To as(From* from) noexcept {
    return reinterpret_cast<To>(from);
}

}  // namespace detail::windows

NETIO_END

#endif

#endif
