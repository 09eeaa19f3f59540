#ifndef BOARD_H_
#define BOARD_H_

#include <stdint.h>

int main(void);
void put(const char* text);
void put_number(uint32_t number);
void stop(int code);

#endif
