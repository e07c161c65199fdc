#include "../posix.h"
#define socketpair posix_socketpair
#define send posix_send
#define recv posix_recv
#define AF_UNIX 1
#define SOCK_SEQPACKET 5
#define SOCK_CLOEXEC 0
#define MSG_NOSIGNAL 0
