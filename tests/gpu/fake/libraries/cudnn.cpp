// A stand-in for cuDNN: it says its version, which PyTorch compares with its own, and is switched off (sitecustomize.py).
static const int version[] = {9, 19, 0};
extern "C" {
unsigned long cudnnGetVersion() { return version[0] * 10000 + version[1] * 100 + version[2]; }
int cudnnGetProperty(int part, int* value) {
    *value = version[part];
    return 0;
}
}
