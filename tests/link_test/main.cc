// What is tested is that the program links.
int main() { return 0; }
