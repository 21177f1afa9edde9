// Compares deploy/memory.c with plain loops, for each size up to 400 bytes and some long ones, each alignment of 16, and
// each overlap. Prints the first mistake, and ends with 1.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

void *memmove(void *, const void *, size_t);
void *memcpy(void *restrict, const void *restrict, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
int bcmp(const void *, const void *, size_t);

enum { AREA = 20000 };
static unsigned char actual[AREA], expected[AREA], copy[AREA];

static void fill(void) {
    for (size_t i = 0; i < AREA; i++) actual[i] = expected[i] = (unsigned char)(i * 7 + i / 251);
}

static void compare(const char *name, size_t to, size_t from, size_t size) {
    for (size_t i = 0; i < AREA; i++)
        if (actual[i] != expected[i]) {
            printf("%s(to %zu, from %zu, %zu bytes): byte %zu is wrong\n", name, to, from, size, i);
            exit(1);
        }
}

static void move(const char *name, void *(*function)(void *, const void *, size_t), size_t to, size_t from, size_t size) {
    fill();
    for (size_t i = 0; i < size; i++) copy[i] = expected[from + i];
    for (size_t i = 0; i < size; i++) expected[to + i] = copy[i];
    if (function(actual + to, actual + from, size) != actual + to) exit(2);
    compare(name, to, from, size);
}

static void *as_copy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }

static int sign(int value) { return (value > 0) - (value < 0); }

static void sizes(size_t size) {
    for (size_t offset = 0; offset < 16; offset++) {
        move("memcpy", as_copy, 9000 + offset, 64 + 15 - offset, size);
        fill();
        for (size_t i = 0; i < size; i++) expected[500 + offset + i] = 0xa5;
        if (memset(actual + 500 + offset, 0x1a5, size) != actual + 500 + offset) exit(2);
        compare("memset", 500 + offset, 0, size);
    }
    for (size_t distance = 0; distance <= (size < 140 ? size + 2 : 140); distance++) {
        move("memmove up", memmove, 4000 + distance, 4000, size);
        move("memmove down", memmove, 4000, 4000 + distance, size);
    }
    fill();
    for (size_t i = 0; i < size; i++) actual[10003 + i] = actual[i + 5];
    if (memcmp(actual + 10003, actual + 5, size) || bcmp(actual + 10003, actual + 5, size)) exit(3);
    for (size_t i = 0; i < size; i += size > 400 ? 97 : 1) {
        unsigned char old = actual[10003 + i];
        for (int other = 0; other < 256; other += 15) {
            actual[10003 + i] = (unsigned char)other;
            // Greater bytes behind must not count.
            unsigned char behind = actual[10003 + i + 1];
            if (i + 1 < size) actual[10003 + i + 1] = (unsigned char)(255 - other);
            int wanted = other != old ? other - old : 0;
            if (wanted && sign(memcmp(actual + 10003, actual + 5, size)) != sign(wanted)) {
                printf("memcmp: %zu bytes, byte %zu: %d and %d\n", size, i, other, old);
                exit(1);
            }
            actual[10003 + i + 1] = behind;
        }
        actual[10003 + i] = old;
    }
}

int main(void) {
    for (size_t size = 0; size <= 400; size++) sizes(size);
    for (size_t size = 1000; size < 4200; size += 131) sizes(size);
    for (size_t size = 2046; size < 2051; size++) sizes(size);
    return 0;
}
